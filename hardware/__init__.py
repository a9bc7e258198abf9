"""Arms behind one contract, and the safety gate in front of them. Needs numpy and the standard library only."""
