"""From the ranks of a group to packets: rendezvous, the local network, the Python face of the engine."""
