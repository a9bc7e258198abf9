"""Vectorised simulators behind one contract, and the tasks they run."""
