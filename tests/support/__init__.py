"""What tests, the demo and the benchmark share: real mongods, real services, and their clean-up."""
