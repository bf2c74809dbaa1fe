"""End-to-end tests on a real one-node Kubernetes: the cluster, two tiers in pods, an application in a pod."""
