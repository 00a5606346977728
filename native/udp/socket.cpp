#include "udp/socket.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/udp.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace tailcut {

namespace {

Time clock_ns(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return Time{now.tv_sec} * kSecond + now.tv_nsec;
}

bool enable(int fd, int level, int option, int value = 1) { return setsockopt(fd, level, option, &value, sizeof value) == 0; }

uint64_t buffer_size(int fd, int option, uint64_t wanted) {
  int value = static_cast<int>(std::min<uint64_t>(wanted, 1u << 30));
  if (wanted > 0) enable(fd, SOL_SOCKET, option, value);  // the kernel caps it at net.core.*mem_max
  socklen_t length = sizeof value;
  getsockopt(fd, SOL_SOCKET, option, &value, &length);
  return static_cast<uint64_t>(value) / 2;  // the kernel counts its own overhead, about as much as the payload
}

}  // namespace

Time monotonic_now() { return clock_ns(CLOCK_MONOTONIC); }

Address Address::parse(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0 || found == nullptr) {
    throw std::invalid_argument("not a numeric IPv4 or IPv6 address: '" + host + "'");
  }
  Address address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

std::string Address::host() const {
  char text[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

uint16_t Address::port() const {
  if (storage.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

bool Address::loopback() const {
  if (storage.ss_family == AF_INET) return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

bool Address::same_host(const Address& other) const {
  if (storage.ss_family != other.storage.ss_family) return false;
  if (storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(&other.storage)->sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(&other.storage)->sin6_addr, sizeof(in6_addr)) == 0;
}

bool Address::operator==(const Address& other) const { return same_host(other) && port() == other.port(); }

UdpSocket::UdpSocket(const Address& bind_to, uint64_t buffer_bytes, bool offload) {
  fd_ = socket(bind_to.storage.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "cannot open a UDP socket");
  set_options(buffer_bytes, offload);
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&bind_to.storage), bind_to.length) != 0) {
    const int error = errno;
    close(fd_);
    throw std::system_error(error, std::generic_category(), "cannot bind UDP " + bind_to.host() + " port " + std::to_string(bind_to.port()));
  }
  local_.length = sizeof local_.storage;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&local_.storage), &local_.length);
  buffer_.reset(new uint8_t[kReceiveBatch * kMessageBytes]);
  in_.resize(kReceiveBatch);
  in_vectors_.resize(kReceiveBatch);
  in_addresses_.resize(kReceiveBatch);
  in_control_.resize(kReceiveBatch);
  received_.reserve(kReceiveBatch);
  out_.resize(kSendBatch);
  out_vectors_.resize(kSendBatch * 2 * Transmit::kMaxSegments);
  out_control_.resize(kSendBatch);
}

UdpSocket::~UdpSocket() {
  if (fd_ >= 0) close(fd_);
}

void UdpSocket::set_options(uint64_t buffer_bytes, bool offload) {
  features_.receive_buffer = buffer_size(fd_, SO_RCVBUF, buffer_bytes);
  features_.send_buffer = buffer_size(fd_, SO_SNDBUF, buffer_bytes);
  // Never fragment: a datagram that does not fit must fail here, or vanish on the way and be found by the probes.
  enable(fd_, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  enable(fd_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  features_.timestamps = enable(fd_, SOL_SOCKET, SO_TIMESTAMPNS);
  features_.drop_counts = enable(fd_, SOL_SOCKET, SO_RXQ_OVFL);
  if (!offload) return;
  features_.gro = enable(fd_, SOL_UDP, UDP_GRO);
  int value = 0;
  socklen_t length = sizeof value;
  features_.gso = getsockopt(fd_, SOL_UDP, UDP_SEGMENT, &value, &length) == 0;
}

const std::vector<Received>& UdpSocket::receive(uint64_t& drops) {
  received_.clear();
  for (size_t i = 0; i < kReceiveBatch; ++i) {
    in_vectors_[i] = {buffer_.get() + i * kMessageBytes, kMessageBytes};
    msghdr& message = in_[i].msg_hdr;
    message = {};
    message.msg_name = &in_addresses_[i].storage;
    message.msg_namelen = sizeof in_addresses_[i].storage;
    message.msg_iov = &in_vectors_[i];
    message.msg_iovlen = 1;
    message.msg_control = in_control_[i].data();
    message.msg_controllen = in_control_[i].size();
  }
  const int count = recvmmsg(fd_, in_.data(), kReceiveBatch, MSG_DONTWAIT, nullptr);
  if (count <= 0) return received_;
  const Time now = clock_ns(CLOCK_MONOTONIC);
  const Time offset = now - clock_ns(CLOCK_REALTIME);
  for (int i = 0; i < count; ++i) {
    msghdr& message = in_[i].msg_hdr;
    Received one;
    one.data = buffer_.get() + static_cast<size_t>(i) * kMessageBytes;
    one.bytes = one.segment = in_[i].msg_len;
    one.arrived = now;
    one.truncated = message.msg_flags & MSG_TRUNC;
    in_addresses_[i].length = message.msg_namelen;
    one.from = &in_addresses_[i];
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
        int segment = 0;
        std::memcpy(&segment, CMSG_DATA(c), sizeof segment);
        if (segment > 0) one.segment = static_cast<size_t>(segment);
      } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
        timespec at{};
        std::memcpy(&at, CMSG_DATA(c), sizeof at);
        one.arrived = std::min(now, Time{at.tv_sec} * kSecond + at.tv_nsec + offset);
      } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
        uint32_t total = 0;
        std::memcpy(&total, CMSG_DATA(c), sizeof total);
        drops += total - kernel_drops_;
        kernel_drops_ = total;
      }
    }
    received_.push_back(one);
  }
  return received_;
}

void UdpSocket::prepare(size_t slot, const Transmit& batch, const Address& to) {
  iovec* vectors = &out_vectors_[slot * 2 * Transmit::kMaxSegments];
  for (uint32_t i = 0; i < batch.pieces; ++i) vectors[i] = {const_cast<uint8_t*>(batch.piece[i].data), batch.piece[i].bytes};
  msghdr& message = out_[slot].msg_hdr;
  message = {};
  message.msg_name = const_cast<sockaddr_storage*>(&to.storage);
  message.msg_namelen = to.length;
  message.msg_iov = vectors;
  message.msg_iovlen = batch.pieces;
  if (batch.segments <= 1) return;
  message.msg_control = out_control_[slot].data();
  message.msg_controllen = CMSG_SPACE(sizeof(uint16_t));
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_UDP;
  c->cmsg_type = UDP_SEGMENT;
  c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const auto segment = static_cast<uint16_t>(batch.segment_bytes);
  std::memcpy(CMSG_DATA(c), &segment, sizeof segment);
}

int UdpSocket::flush(size_t messages) {
  int sent = 0;
  do {
    sent = sendmmsg(fd_, out_.data(), static_cast<unsigned>(messages), MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

size_t UdpSocket::send(const Transmit* batches, size_t count, const std::vector<Address>& peers, uint64_t& refused) {
  size_t done = 0;
  while (done < count) {
    size_t slots = 0;
    while (done + slots < count && slots < kSendBatch && (features_.gso || batches[done + slots].segments <= 1)) {
      prepare(slots, batches[done + slots], peers[batches[done + slots].to]);
      ++slots;
    }
    if (slots == 0) {  // no GSO: one message for each datagram
      if (!send_single(batches[done], peers[batches[done].to], refused)) return done;
      ++done;
      continue;
    }
    const int sent = flush(slots);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return done;
    if (batches[done].segments > 1 && (errno == EIO || errno == EINVAL || errno == EOPNOTSUPP)) {
      features_.gso = false;  // this interface cannot: from now on in single datagrams
      continue;
    }
    refused += batches[done].segments;  // unreachable, forbidden by a filter, too long: repair will tell
    ++done;
  }
  return done;
}

// All datagrams of the batch or, when the buffer fills up in the middle, none is repeated: what is missing will be repaired.
bool UdpSocket::send_single(const Transmit& batch, const Address& to, uint64_t& refused) {
  uint32_t segment = 0;
  while (segment < batch.segments) {
    size_t slots = 0;
    for (; slots < kSendBatch && segment + slots < batch.segments; ++slots) {
      iovec* vectors = &out_vectors_[slots * 2 * Transmit::kMaxSegments];
      for (uint32_t k = 0; k < 2; ++k) {
        const Transmit::Piece& piece = batch.piece[2 * (segment + slots) + k];
        vectors[k] = {const_cast<uint8_t*>(piece.data), piece.bytes};
      }
      msghdr& message = out_[slots].msg_hdr;
      message = {};
      message.msg_name = const_cast<sockaddr_storage*>(&to.storage);
      message.msg_namelen = to.length;
      message.msg_iov = vectors;
      message.msg_iovlen = 2;
    }
    const int sent = flush(slots);
    if (sent > 0) {
      segment += static_cast<uint32_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
      if (segment == 0) return false;
      refused += batch.segments - segment;
      return true;
    } else {
      ++refused;
      ++segment;
    }
  }
  return true;
}

bool UdpSocket::send_probe(const uint8_t* data, size_t bytes, const Address& to) {
  const ssize_t sent = sendto(fd_, data, bytes, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to.storage), to.length);
  return sent >= 0 || errno != EMSGSIZE;
}

}  // namespace tailcut
