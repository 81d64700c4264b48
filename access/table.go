package access

import (
	"slices"
	"strings"
)

// Groups that the table speaks of, beside Kubernetes' own. The certificates of
// servers and workers carry theirs, and no other certificate and no token may.
const (
	Servers = "berth:servers"
	Workers = "berth:workers"

	// Controllers are those of workloads, inside of the leading server. Each is also in
	// a group of its own (ControllerGroup).
	Controllers = "berth:controllers"

	// Mirrors is a server that makes, for a worker, the objects that show its static pods.
	Mirrors = "berth:mirrors"

	Masters       = "system:masters"
	Monitoring    = "system:monitoring"
	Authenticated = "system:authenticated"
	// Accounts are the service accounts: whoever shows a token of one. Another
	// group names the account's namespace: system:serviceaccounts:NAMESPACE.
	Accounts = "system:serviceaccounts"
	// Bootstrappers are machines that show a token by which they may join. Nodes are those
	// whose certificate was made by request.
	Bootstrappers = "system:bootstrappers"
	Nodes         = "system:nodes"

	// Everybody is who is known, and who is not.
	Everybody = "*"
)

// Rule lets a group do something. Resources or Paths are asked at the API with
// a verb, Methods at the RPC without one.
type Rule struct {
	// Group whose members may. Authenticated stands for people and programs,
	// never for servers and workers, nor for service accounts.
	Group string
	// Verbs are the API's, for paths HTTP's in lower case. "*" is every one.
	Verbs []string
	// Resources are written "pods", "pods/log", "replicasets.apps/scale". "*" is
	// every one, and every path; "*/scale" is that part of every one.
	Resources []string
	// OwnNamespaces: not in those that belong to the system (SystemNamespaces).
	OwnNamespaces bool
	// Home: in the service account's own namespace alone.
	Home bool
	only string // of Home: which one
	// Paths that end in "/*" stand for everything below.
	Paths []string
	// Methods are RPC's full names.
	Methods []string
	// Why is for the reader of the documentation.
	Why string
	// Before: as long as the cluster has no roles (View.HasRoles), which is one that was founded
	// before there were any. Roles say it from then on (Applications, Home).
	Before bool
}

// ClassUsers is the group that a command carries whose user was found to have the right to
// use a PriorityClass. No certificate and no token has it.
func ClassUsers(class string) string { return reserved + "use:" + class }

// reserved is what the names of groups begin with that are Berth's own.
const reserved = "berth:"

// IsReserved: the name of a user, or of a group, that nobody has by certificate, token or impersonation.
func IsReserved(name string) bool { return strings.HasPrefix(name, reserved) }

// ControllerGroup is the group of one controller of workloads.
func ControllerGroup(name string) string { return "berth:controller:" + name }

// SystemNamespaces are those in which only system:masters writes.
func SystemNamespaces() []string { return []string{"kube-system", "kube-public", "kube-node-lease"} }

// PublicPaths are what anybody may ask: whether the server is well, and what it
// is.
func PublicPaths() []string { return []string{"/healthz", "/livez", "/readyz", "/version"} }

// Rules is the table.
func Rules() []Rule { return slices.Clone(table) }

// table is asked for every request, so it is made once. Nothing changes it.
var table = rules()

// rules are the rows. Those that hold Before are what everybody might before there were
// roles.
func rules() []Rule {
	discovery := []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi/*"}
	selfReviews := []string{
		"selfsubjectreviews.authentication.k8s.io", "selfsubjectaccessreviews.authorization.k8s.io",
		"selfsubjectrulesreviews.authorization.k8s.io",
	}
	workerMethods := []string{
		"/berth.rpc.Worker/Connect", "/berth.rpc.Worker/Fetch", "/berth.rpc.Worker/Token", "/berth.rpc.Worker/Mirror",
		"/berth.rpc.Worker/Tunnel",
	}
	return slices.Concat([]Rule{
		{Group: Everybody, Verbs: []string{"get", "head"}, Paths: PublicPaths(), Why: "load balancers and probes"},
		{Group: Masters, Verbs: []string{"*"}, Resources: []string{"*"}, Why: "administrators: everything at the API"},
		{
			Group: Monitoring, Verbs: []string{"get"}, Paths: []string{"/metrics", "/healthz/*", "/livez/*", "/readyz/*"},
			Why: "Prometheus, with a certificate or token of this group",
		},
		{
			Group: Authenticated, Verbs: []string{"get", "head"},
			Paths: discovery, Why: "what is served here",
		},
		{
			Group: Authenticated, Verbs: []string{"create"},
			Resources: selfReviews, Why: "`berth auth whoami`, `berth auth can-i`",
		},
		{
			Group: Authenticated, Verbs: []string{"get", "list", "watch"}, Resources: []string{"customresourcedefinitions.apiextensions.k8s.io"},
			Why: "which kinds were defined; kubectl looks before it says that a kind is not served",
		},
		{
			Group: Authenticated, Verbs: []string{"get", "head"}, Paths: openID(), Why: "by what others believe tokens of service accounts",
		},
		{
			Group: Accounts, Verbs: []string{"get", "head"},
			Paths: slices.Concat(discovery, openID()), Why: "what is served here",
		},
		{
			Group: Accounts, Verbs: []string{"create"},
			Resources: selfReviews, Why: "who it is, and what it may",
		},
		{
			Group: Bootstrappers, Verbs: []string{"get", "list", "watch", "create"}, Resources: []string{certificateRequests},
			Why: "a machine that joins asks for its certificate",
		},
		{
			Group: Bootstrappers, Verbs: []string{"create"}, Resources: []string{certificateRequests + "/nodeclient"},
			Why: "and gets that of a node, without anybody else's approval",
		},
		{
			Group: Nodes, Verbs: []string{"create"}, Resources: []string{certificateRequests + "/selfnodeclient"},
			Why: "a node renews its own certificate",
		},
		{
			Group: Nodes, Verbs: []string{"get", "list", "watch", "create"}, Resources: []string{certificateRequests},
			Why: "and asks for it",
		},
		{Group: Nodes, Verbs: []string{"get"}, Paths: []string{"/berth/v1/join"}, Why: "where the others are, and the key of gossip"},
		{
			Group:   Nodes,
			Methods: workerMethods, Why: "as a worker, by a certificate whose user is `system:node:NAME`",
		},
		{
			Group:   Workers,
			Methods: workerMethods, Why: "for the node that the certificate names: its pods, what they refer to, their tokens and logs",
		},
		{
			Group: Mirrors, Verbs: []string{"create", "delete"}, Resources: []string{"pods"},
			Why: "the server that a worker tells of its static pods, once it has found that they are no more than that",
		},
		{
			Group: Mirrors, Verbs: []string{"use"}, Resources: []string{"priorityclasses.scheduling.k8s.io"},
			Why: "static pods are those of the node's owner",
		},
		{
			Group: Servers,
			Methods: []string{
				"/berth.rpc.Server/Forward", "/berth.rpc.Server/ReadIndex", "/berth.rpc.Server/ReportStreams", "/berth.rpc.Server/Renewal",
				"/berth.rpc.Server/Digest", "/berth.rpc.Server/Differs", "/berth.rpc.Server/Status", "/berth.rpc.Server/Samples",
				"/berth.rpc.Server/Holds", "/berth.rpc.Server/Tunnel",
			},
			Why: "servers among themselves",
		},
		{
			Group: Servers, Verbs: []string{"get", "create"},
			Resources: []string{"nodes/proxy", "nodes/log", "nodes/stats", "nodes/metrics"},
			Why:       "what a kubelet asks about a server that comes to its port, for somebody who was let in at the API",
		},
		{
			Group:   Servers,
			Methods: workerMethods, Why: "a worker of the same name in the server's own process",
		},
	}, controllerRules(), rulesBefore())
}

// controllerRules: what each controller of workloads writes, and what it looks up
// beyond the state that it sees.
func controllerRules() []Rule {
	row := func(controller string, verbs []string, resources ...string) Rule {
		return Rule{Group: ControllerGroup(controller), Verbs: verbs, Resources: resources, Why: "the controller in the leading server"}
	}
	keep := []string{"get", "create", "update", "patch", "delete"}
	change := []string{"get", "update", "patch"}
	return []Rule{
		{
			Group: Controllers, Verbs: []string{"create", "update", "patch"}, Resources: []string{"events", "events.events.k8s.io"},
			Why: "what controllers of workloads tell",
		},
		row("deployment", change, "deployments.apps", "deployments.apps/status"),
		row("deployment", keep, "replicasets.apps"),
		row("statefulset", change, "statefulsets.apps", "statefulsets.apps/status"),
		row("statefulset", keep, "pods", "controllerrevisions.apps", "persistentvolumeclaims"),
		row("daemonset", change, "daemonsets.apps", "daemonsets.apps/status"),
		row("daemonset", keep, "pods", "controllerrevisions.apps"),
		row("job", change, "jobs.batch", "jobs.batch/status"),
		row("job", keep, "pods"),
		row("cronjob", change, "cronjobs.batch", "cronjobs.batch/status"),
		row("cronjob", keep, "jobs.batch"),
		row("ttlafterfinished", []string{"get", "delete"}, "jobs.batch"),
		row("replication", change, "replicationcontrollers", "replicationcontrollers/status"),
		row("replication", keep, "pods"),
		row("clusterrole-aggregation", []string{"get", "update", "patch", "escalate"}, "clusterroles.rbac.authorization.k8s.io"),
		row("customresourcedefinition", change, "customresourcedefinitions.apiextensions.k8s.io/status"),
		row("endpoint", []string{"get", "list", "create", "update", "delete"}, "endpoints"),
		row("persistent-volume-binder", keep, "persistentvolumes", "persistentvolumeclaims"),
		row("persistent-volume-binder", change, "persistentvolumes/status", "persistentvolumeclaims/status"),
		row("attachdetach", []string{"get", "create", "delete"}, "volumeattachments.storage.k8s.io"),
		row("attachdetach", []string{"get"}, "nodes"),
		row("attachdetach", []string{"patch"}, "nodes/status"),
		row("resourceclaim-controller", []string{"get", "create", "update", "delete"}, "resourceclaims.resource.k8s.io"),
		row("resourceclaim-controller", []string{"update"}, "resourceclaims.resource.k8s.io/status", "resourceclaims.resource.k8s.io/binding"),
		row("resourceclaim-controller", []string{"get"}, "pods"),
		row("resourceclaim-controller", []string{"patch"}, "pods/status"),
		row("device-allocator", []string{"update"}, "resourceclaims.resource.k8s.io", "resourceclaims.resource.k8s.io/status", "resourceclaims.resource.k8s.io/binding"),
		row("device-taint-eviction-controller", []string{"get", "delete"}, "pods"),
		row("device-taint-eviction-controller", []string{"update", "patch"}, "pods/status"),
		row("pvc-protection-controller", change, "persistentvolumeclaims"),
		row("pvc-protection-controller", []string{"list"}, "pods"),
		row("pv-protection-controller", change, "persistentvolumes"),
		row("volumeattributesclass-protection-controller", change, "volumeattributesclasses.storage.k8s.io"),
		row("ephemeral-volume-controller", []string{"get", "create"}, "persistentvolumeclaims"),
		row("endpointslice", []string{"get", "create", "update", "delete"}, "endpointslices.discovery.k8s.io"),
		row("endpointslicemirroring", []string{"get", "create", "update", "delete"}, "endpointslices.discovery.k8s.io"),
		{
			Group: ControllerGroup("horizontal-pod-autoscaler"), Verbs: []string{"get"}, Paths: []string{"/api", "/api/*", "/apis", "/apis/*"},
			Why: "which kinds can be scaled",
		},
		row("horizontal-pod-autoscaler", change, "horizontalpodautoscalers.autoscaling", "horizontalpodautoscalers.autoscaling/status"),
		row("horizontal-pod-autoscaler", []string{"get", "update"}, "*/scale"),
		row("horizontal-pod-autoscaler", []string{"list"}, "pods.metrics.k8s.io"),
		row("csrapproving", []string{"create"}, "subjectaccessreviews.authorization.k8s.io"),
		row("csrapproving", []string{"update"}, certificateRequests+"/approval"),
		row("csrapproving", []string{"approve"}, "signers.certificates.k8s.io"),
		row("csrsigning", []string{"update"}, certificateRequests+"/status"),
		row("csrsigning", []string{"sign"}, "signers.certificates.k8s.io"),
		row("validatingadmissionpolicy-status", []string{"patch"}, "validatingadmissionpolicies.admissionregistration.k8s.io/status"),
		row("priority-and-fairness-config-producer", []string{"get", "create", "update", "delete"}, "flowschemas.flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io"),
		row("api-priority-and-fairness-config-consumer-v1", []string{"patch"}, "flowschemas.flowcontrol.apiserver.k8s.io/status"),
		row("service-cidrs-controller", change, "servicecidrs.networking.k8s.io", "servicecidrs.networking.k8s.io/status"),
		row("serviceaccount-token-controller", []string{"get", "update", "delete"}, "secrets"),
		row("serviceaccount-token-controller", []string{"get", "update"}, "serviceaccounts"),
		row("token-cleaner", []string{"delete"}, "secrets"),
		row("apiservice-status-remote-available-controller", []string{"update"}, "apiservices.apiregistration.k8s.io/status"),
		row("cluster-authentication-trust", []string{"get", "create", "update"}, "configmaps"),
		row("cluster-authentication-trust", []string{"get", "create", "escalate"}, "roles.rbac.authorization.k8s.io"),
		row("csrcleaner", []string{"delete"}, certificateRequests),
	}
}

// certificateRequests are requests for certificates, as the table names them.
const certificateRequests = "certificatesigningrequests.certificates.k8s.io"

// openID are where the public keys of service accounts' tokens are.
func openID() []string { return []string{"/.well-known/openid-configuration", "/openid/v1/jwks"} }

// rulesBefore are the rows that hold as long as there are no roles, and what those may
// by roles who were there before (package roles).
func rulesBefore() []Rule {
	read := []string{"get", "list", "watch"}
	write := []string{"create", "update", "patch", "delete", "deletecollection"}
	rows := []Rule{
		{
			Group: Authenticated, Verbs: []string{"get"}, Paths: []string{"/berth/v1/members", "/berth/v1/status", "/berth/v1/why"},
			Why: "`berth members`, `berth operator status`, `berth why`",
		},
		{
			Group: Authenticated, Verbs: read,
			Resources: []string{
				"pods", "pods/status", "nodes", "nodes/status", "namespaces", "namespaces/status", "events", "events.events.k8s.io",
				"services", "services/status", "configmaps", "serviceaccounts", "podtemplates",
				"replicasets.apps", "replicasets.apps/status", "replicasets.apps/scale",
				"deployments.apps", "deployments.apps/status", "deployments.apps/scale",
				"statefulsets.apps", "statefulsets.apps/status", "statefulsets.apps/scale",
				"daemonsets.apps", "daemonsets.apps/status", "controllerrevisions.apps",
				"jobs.batch", "jobs.batch/status", "cronjobs.batch", "cronjobs.batch/status",
				"replicationcontrollers", "replicationcontrollers/status", "replicationcontrollers/scale",
				"endpoints", "endpointslices.discovery.k8s.io", "limitranges", "resourcequotas", "resourcequotas/status",
				"persistentvolumes", "persistentvolumes/status", "persistentvolumeclaims", "persistentvolumeclaims/status",
				"storageclasses.storage.k8s.io",
				"poddisruptionbudgets.policy", "poddisruptionbudgets.policy/status",
				"priorityclasses.scheduling.k8s.io", "runtimeclasses.node.k8s.io", "leases.coordination.k8s.io",
				"queueentries.berth.dev", "preemptions.berth.dev", "schedulerconfigurations.berth.dev",
				"nodes.metrics.k8s.io", "pods.metrics.k8s.io", "horizontalpodautoscalers.autoscaling", "horizontalpodautoscalers.autoscaling/status",
			},
			Why: "everything but secrets and logs, in every namespace",
		},
		{
			Group: Authenticated, Verbs: write, OwnNamespaces: true,
			Resources: []string{
				"pods", "services", "configmaps", "serviceaccounts", "podtemplates",
				"deployments.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch", "cronjobs.batch", "replicationcontrollers",
				"replicasets.apps", "poddisruptionbudgets.policy", "leases.coordination.k8s.io", "persistentvolumeclaims",
				"horizontalpodautoscalers.autoscaling",
			},
			Why: "applications",
		},
		{
			Group: Authenticated, Verbs: []string{"update", "patch"}, OwnNamespaces: true,
			Resources: []string{"replicasets.apps/scale", "deployments.apps/scale", "statefulsets.apps/scale", "replicationcontrollers/scale"},
			Why:       "`berth scale`",
		},
		{
			Group: Authenticated, Verbs: []string{"create"}, OwnNamespaces: true,
			Resources: []string{"pods/eviction"}, Why: "`berth evict`, within the budgets",
		},
		{Group: Authenticated, Verbs: []string{"get"}, OwnNamespaces: true, Resources: []string{"pods/log"}, Why: "`berth logs`"},
		{
			Group: Authenticated, Verbs: []string{"get", "create"}, OwnNamespaces: true,
			Resources: []string{"pods/exec", "pods/attach", "pods/portforward"},
			Why:       "`berth exec`, `cp`, `attach`, `port-forward`; a WebSocket needs both verbs",
		},
		{
			Group: Authenticated, Verbs: []string{"get", "update", "patch"}, OwnNamespaces: true,
			Resources: []string{"pods/ephemeralcontainers"}, Why: "`berth debug`",
		},
		{
			Group: Authenticated, Verbs: []string{"get", "update", "patch"}, OwnNamespaces: true,
			Resources: []string{"pods/resize"}, Why: "other resources for pods that run",
		},
		{Group: Authenticated, Verbs: []string{"create"}, Resources: []string{"plans.berth.dev"}, Why: "`berth plan`: nothing is changed"},
		{
			Group: Authenticated, Verbs: []string{"create"}, OwnNamespaces: true,
			Resources: []string{"serviceaccounts/token"}, Why: "`kubectl create token`: a service account may less than they",
		},
		{
			Group: Accounts, Verbs: read, Home: true,
			Resources: []string{
				"pods", "pods/status", "services", "services/status", "configmaps", "serviceaccounts", "podtemplates",
				"endpoints", "endpointslices.discovery.k8s.io",
				"replicasets.apps", "replicasets.apps/status", "replicasets.apps/scale", "leases.coordination.k8s.io",
			},
			Why: "a pod finds the others of its application; it writes nothing, and reads no secret",
		},
	}
	for i := range rows {
		rows[i].Before = true
	}
	return rows
}
