"""Models of chumoku for the evaluation programs of others."""
