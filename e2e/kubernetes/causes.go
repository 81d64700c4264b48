package main

import "strings"

// cause is why some specs do not pass. It has to be about specs that fail: an entry for one that passes is an error.
type cause struct {
	specs  string // the beginning of their names
	said   string // is in what they say; empty: whatever they say, and none of them passes
	reason string
}

const (
	nodeLogs  = "They are about the logs of a kubelet as systemd keeps them, and reach nodes by SSH."
	hostUsers = "Berth's workers have no user namespaces for pods: `hostUsers: false` is refused ([pods.md](pods.md))."
)

// causes are known and told; a failure that none explains makes the run fail.
var causes = []cause{
	{"[sig-node] PodRejectionStatus", "", "The pod asks for more processors than Berth admits in a request ([limits.md](limits.md))."},
	{"[sig-node] PrivilegedPod", "RTNETLINK answers: Operation not supported", "It makes a `dummy` network interface, which the kernel of the run's machine does not have."},
	{"[sig-node] Sysctls [LinuxOnly] [NodeConformance] should not launch unsafe", "",
		"A pod that asks for what its node does not have waits and says so ([pods.md](pods.md)); a kubelet has it fail."},
	{"[sig-node] Security Context When creating a pod with HostUsers must create the user namespace if set to false", "", hostUsers},
	{"[sig-node] Security Context When creating a pod with HostUsers should ", "", hostUsers},
	{"[sig-node] Security Context When creating a pod with HostUsers metrics ", "",
		"It asks the port of a kubelet for its figures. Berth's workers have none, and are asked through the API."},
	{"[sig-node] Security Context SupplementalGroupsPolicy", "",
		"They look for the groups of a container's processes in `status.containerStatuses[].user`, which the run's containerd (1.6) does not tell; " +
			"nor does it know the policy `Strict`."},
	{"[sig-storage] PersistentVolumes-local [Volume type: blockfswithoutformat] ", "",
		"The volume's path is a block device without a file system, which Berth's workers neither make nor mount ([volumes.md](volumes.md))."},
	{"[sig-storage] PersistentVolumes-local [Volume type: block] ", "",
		"Berth's workers have no volumes that are block devices ([volumes.md](volumes.md)); a kubelet's node has."},
	{"[sig-cli] Kubectl client Kubectl get componentstatuses", "",
		"Kubernetes has deprecated them since 1.19, and Berth has none: `/readyz` of a server and `berth operator` say how servers are."},
	{"[sig-node] kubelet kubectl get --raw", "Failed to find", nodeLogs},
	{"[sig-node] kubelet kubectl get --raw", "error reading SSH key", nodeLogs},
	{"[sig-api-machinery] StorageVersion", "does not serve storageversions", "Kubernetes has that kind as an alpha of its own, which is off by default."},
	{"[sig-auth] ServiceAccount admission controller migration", "get-build.sh", "It upgrades a cluster by scripts of Kubernetes' sources."},
	{"[sig-network] Conntrack", waited, noImage},
	{"[sig-network] KubeProxy should set TCP CLOSE_WAIT", waited, noImage},
	{"[sig-network] Networking IPerf2", "iperf2-server-deployment", noImage},
	{"[sig-network] DNS should support configurable pod resolv.conf", "customized name server", "Its name server is CoreDNS out of an image that nobody stands in for."},
	{"[sig-network] KubeProxy", "127.0.0.1:10249", proxyPorts},
	{"[sig-network] Networking should check kube-proxy urls", "localhost:10256", proxyPorts},
	{"[sig-network] Networking Granular Checks", waited, "The kernel of the run's machine has no SCTP."},
	{"[sig-network] Networking should provide", "connectivity-test", "The machine of the run has no way to the internet."},
	{"[sig-network] Proxy version v1 should proxy logs on node", "could not find", "They ask a kubelet for the files below the machine's /var/log, which Berth's workers show nobody."},
	{"[sig-node] Mount propagation", waited, "The nodes of the run have a root that is not a shared mount, as Bidirectional needs it."},
	{"[sig-node] PLR Pod InPlace Resize", "pod.status.allocatedResources mismatch",
		"Berth tells what is allocated to a pod as a whole where the pod asks for that as a whole, and not of every pod with requests."},
	{"[sig-node] ", "oom_score_adj value 0 not equal to expected -997",
		"The machine of the run lets no process have a lower `oom_score_adj` than its own, so that its containerd was told to leave it."},
}

const (
	waited     = "expected pod to be running and ready"
	noImage    = "It needs an image that nobody stands in for."
	proxyPorts = "It asks the ports of a kube-proxy for its health and figures. Berth's workers carry services themselves, and have none of these."
)

// of says whether it is why a spec came to what it did.
func (c *cause) of(name string, r result) bool {
	return strings.HasPrefix(name, c.specs) && strings.Contains(r.Why, c.said)
}

func causeOf(causes []cause, name string, r result) string {
	for i := range causes {
		if causes[i].of(name, r) {
			return causes[i].reason
		}
	}
	return ""
}
