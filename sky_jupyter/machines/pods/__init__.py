"""Pods of a Kubernetes cluster as machines, over the streams of its API."""
