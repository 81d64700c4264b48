package model

// ReasonWorkerUnready is the reason of a Ready condition that is False because the node's own worker says that it can start
// no pods: Kubernetes' name for it.
const ReasonWorkerUnready = "KubeletNotReady"
