"""What lies beyond one run: where else a slice breaks things, and on what its failure depends."""
