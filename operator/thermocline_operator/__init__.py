"""The Kubernetes operator that reconciles TieredReplicaSet resources."""
