"""What processes say to each other: messages of ranks and nodes, frames, the handshake."""
