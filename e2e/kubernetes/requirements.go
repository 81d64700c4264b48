//go:build requirements

// What the module must have although no program here imports it: Kubernetes'
// end-to-end tests, the programs that they use (etcd among them), kubectl, the kubelet, and what `make bench-beside` runs. They are
// built as they are, and never with this tag.
package main

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/kubernetes/test/images/nonewprivs"
	_ "k8s.io/sample-apiserver"

	_ "go.etcd.io/etcd/server/v3"
)
