// One UDP socket with everything the kernel offers for many small datagrams: segmentation (GSO), merging (GRO), batches
// (sendmmsg, recvmmsg), arrival time stamps and drop counts. Each is probed at run time and done without where it is missing.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.hpp"

namespace tailcut {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // Numeric hosts only ("10.0.0.1", "fe80::1%eth0"); throws std::invalid_argument otherwise.
  static Address parse(const std::string& host, uint16_t port);
  std::string host() const;
  uint16_t port() const;
  bool loopback() const;
  bool same_host(const Address& other) const;
  bool operator==(const Address& other) const;
};

// What one receive call brought: datagrams of one sender, each `segment` bytes long, the last may be shorter.
struct Received {
  const uint8_t* data = nullptr;
  size_t bytes = 0;
  size_t segment = 0;
  Time arrived = 0;  // CLOCK_MONOTONIC
  bool truncated = false;
  const Address* from = nullptr;
};

struct Features {
  bool gso = false, gro = false, timestamps = false, drop_counts = false;
  uint64_t receive_buffer = 0;  // payload bytes that fit
  uint64_t send_buffer = 0;
};

class UdpSocket {
 public:
  UdpSocket(const Address& bind_to, uint64_t buffer_bytes, bool offload);
  ~UdpSocket();
  UdpSocket(const UdpSocket&) = delete;
  UdpSocket& operator=(const UdpSocket&) = delete;

  int fd() const { return fd_; }
  const Address& local() const { return local_; }
  const Features& features() const { return features_; }

  // Up to kReceiveBatch messages; what they point to is valid until the next call. The sum of kernel drops is added to `drops`.
  const std::vector<Received>& receive(uint64_t& drops);

  // Sends batches in order; returns how many left (fewer: the socket's buffer is full). Refused ones are counted and skipped.
  size_t send(const Transmit* batches, size_t count, const std::vector<Address>& peers, uint64_t& refused);

  // One datagram; false when the kernel says it is too long for the interface.
  bool send_probe(const uint8_t* data, size_t bytes, const Address& to);

  static constexpr size_t kReceiveBatch = 8;
  static constexpr size_t kSendBatch = 16;

 private:
  void set_options(uint64_t buffer_bytes, bool offload);
  bool send_single(const Transmit& batch, const Address& to, uint64_t& refused);
  int flush(size_t messages);
  void prepare(size_t slot, const Transmit& batch, const Address& to);

  int fd_ = -1;
  Address local_;
  Features features_;
  uint32_t kernel_drops_ = 0;

  static constexpr size_t kMessageBytes = 65536;
  std::unique_ptr<uint8_t[]> buffer_;
  std::vector<mmsghdr> in_;
  std::vector<iovec> in_vectors_;
  std::vector<Address> in_addresses_;
  std::vector<std::array<uint8_t, 128>> in_control_;
  std::vector<Received> received_;
  std::vector<mmsghdr> out_;
  std::vector<iovec> out_vectors_;
  std::vector<std::array<uint8_t, 32>> out_control_;
};

Time monotonic_now();

}  // namespace tailcut
