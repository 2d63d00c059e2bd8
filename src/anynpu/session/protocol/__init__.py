"""Messages on the wire: those of the Open Inference Protocol, their raw contents without copies, and the headers of a trace."""
