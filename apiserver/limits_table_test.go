package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/certificates"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/storage"

	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/fsm"
)

// TestTheTableOfLimits: what docs/limits.md says that the API admits is admitted,
// and one more is refused with the field and the bound.
func TestTheTableOfLimits(t *testing.T) {
	a := newAdmission(t)
	docs.Hold(t, "../docs/limits.md", "# Limits", map[string]func(*testing.T, docs.Row){
		"an amount of one resource in a request, limit or overhead": a.amounts,
		"pods that count on one node":                               a.podsOnNode,
		"labels that a template brings whose controller adds some": func(t *testing.T, r docs.Row) {
			holds(t, r.Numbers(t, 1)[0], "spec.template.metadata.labels", func(n int) runtime.Object {
				return &apps.Deployment{Spec: apps.DeploymentSpec{Template: core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: numbered(n)}}}}
			})
		},
		"tolerations of a DaemonSet's template": func(t *testing.T, r docs.Row) {
			holds(t, r.Numbers(t, 1)[0], "spec.template.spec.tolerations", func(n int) runtime.Object {
				return &apps.DaemonSet{Spec: apps.DaemonSetSpec{Template: core.PodTemplateSpec{Spec: core.PodSpec{Tolerations: make([]core.Toleration, n)}}}}
			})
		},
		"matchLabels of a Deployment's selector, which its ReplicaSets extend": func(t *testing.T, r docs.Row) {
			holds(t, r.Numbers(t, 1)[0], "spec.selector.matchLabels", func(n int) runtime.Object {
				return &apps.Deployment{Spec: apps.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: numbered(n)}}}
			})
		},
		"pods of a StatefulSet; bytes that its template takes as JSON, once for each": setPodsBounds,
		"limit ranges of a namespace; what one limits; amounts of each sort":          limitRangeBounds,
		"quotas of a namespace; resources of one; scopes; classes of a scope":         quotaBounds,
		"a definition of a custom kind":                                               definitionBound,
		"node affinity terms of a volume; topology terms of a storage class": func(t *testing.T, r docs.Row) {
			numbers := r.Numbers(t, 1)
			holds(t, numbers[0], "spec.nodeAffinity.required.nodeSelectorTerms", func(n int) runtime.Object {
				return &core.PersistentVolume{Spec: core.PersistentVolumeSpec{NodeAffinity: &core.VolumeNodeAffinity{
					Required: &core.NodeSelector{NodeSelectorTerms: make([]core.NodeSelectorTerm, n)},
				}}}
			})
			holds(t, numbers[0], "allowedTopologies", func(n int) runtime.Object {
				return &storage.StorageClass{AllowedTopologies: make([]core.TopologySelectorTerm, n)}
			})
		},
		"of them, requests of one user; by one token to join; of one node, to each signer": certificateShares,
		"bytes of a request for a certificate; requests that are kept": func(t *testing.T, r docs.Row) {
			numbers := r.Numbers(t, 2)
			for _, more := range []int{0, 1} {
				err := checkLimits(&certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{Request: make([]byte, int(numbers[0])+more)}})
				if refused := err != nil; refused != (more > 0) {
					t.Errorf("%d bytes: %v", int(numbers[0])+more, err)
				}
			}
			if numbers[1] != fsm.MaxCertificateRequests {
				t.Errorf("the row says %d, and it is %d", numbers[1], fsm.MaxCertificateRequests)
			}
		},
		"metrics of an autoscaler; policies of it, for either direction": func(t *testing.T, r docs.Row) {
			numbers := r.Numbers(t, 2)
			holds(t, numbers[0], "spec.metrics", func(n int) runtime.Object {
				return &autoscaling.HorizontalPodAutoscaler{Spec: autoscaling.HorizontalPodAutoscalerSpec{Metrics: make([]autoscaling.MetricSpec, n)}}
			})
			rules := func(n int) *autoscaling.HPAScalingRules {
				return &autoscaling.HPAScalingRules{Policies: make([]autoscaling.HPAScalingPolicy, n)}
			}
			for field, behavior := range map[string]func(n int) *autoscaling.HorizontalPodAutoscalerBehavior{
				"spec.behavior.scaleUp.policies": func(n int) *autoscaling.HorizontalPodAutoscalerBehavior {
					return &autoscaling.HorizontalPodAutoscalerBehavior{ScaleUp: rules(n)}
				},
				"spec.behavior.scaleDown.policies": func(n int) *autoscaling.HorizontalPodAutoscalerBehavior {
					return &autoscaling.HorizontalPodAutoscalerBehavior{ScaleDown: rules(n)}
				},
			} {
				holds(t, numbers[1], field, func(n int) runtime.Object {
					return &autoscaling.HorizontalPodAutoscaler{Spec: autoscaling.HorizontalPodAutoscalerSpec{Behavior: behavior(n)}}
				})
			}
		},
		"drivers of volumes of one node": func(t *testing.T, r docs.Row) {
			holds(t, r.Numbers(t, 1)[0], "spec.drivers", func(n int) runtime.Object {
				return &storage.CSINode{Spec: storage.CSINodeSpec{Drivers: make([]storage.CSINodeDriver, n)}}
			})
		},
		"ranges for services": func(t *testing.T, r docs.Row) {
			if n := r.Numbers(t, 1); n[0] != fsm.MaxServiceCIDRs {
				t.Errorf("the row says %d", n)
			}
		},
		"admission policies of each sort; bindings of each sort; configurations of webhooks of each sort": func(t *testing.T, r docs.Row) {
			if n := r.Numbers(t, 3); n[0] != fsm.MaxAdmissionPolicies || n[1] != fsm.MaxPolicyBindings || n[2] != fsm.MaxWebhooks {
				t.Errorf("the row says %d", n)
			}
		},
		"webhooks of a configuration; rules of a webhook or policy; expressions of a policy": func(t *testing.T, r docs.Row) {
			numbers := r.Numbers(t, 3)
			holds(t, numbers[0], "webhooks", func(n int) runtime.Object {
				return &admissionregistration.MutatingWebhookConfiguration{Webhooks: make([]admissionregistration.MutatingWebhook, n)}
			})
			holds(t, numbers[1], "webhooks[0].rules", func(n int) runtime.Object {
				return &admissionregistration.ValidatingWebhookConfiguration{Webhooks: []admissionregistration.ValidatingWebhook{{
					Rules: make([]admissionregistration.RuleWithOperations, n)}}}
			})
			holds(t, numbers[1], "spec.matchConstraints.resourceRules", func(n int) runtime.Object {
				return &admissionregistration.ValidatingAdmissionPolicy{Spec: admissionregistration.ValidatingAdmissionPolicySpec{
					MatchConstraints: &admissionregistration.MatchResources{ResourceRules: make([]admissionregistration.NamedRuleWithOperations, n)}}}
			})
			holds(t, numbers[2], "spec", func(n int) runtime.Object {
				return &admissionregistration.MutatingAdmissionPolicy{Spec: admissionregistration.MutatingAdmissionPolicySpec{
					Mutations: make([]admissionregistration.Mutation, n)}}
			})
		},
		"bytes of a policy, or of a configuration of webhooks; of a webhook's answer": func(t *testing.T, r docs.Row) {
			if n := r.Numbers(t, 2); n[0] != maxAdmissionBytes || n[1] != maxWebhookAnswer {
				t.Errorf("the row says %d", n)
			}
		},
		"access modes of a claim or volume": func(t *testing.T, r docs.Row) {
			modes := func(n int) []core.PersistentVolumeAccessMode { return make([]core.PersistentVolumeAccessMode, n) }
			holds(t, r.Numbers(t, 1)[0], "spec.accessModes", func(n int) runtime.Object {
				return &core.PersistentVolumeClaim{Spec: core.PersistentVolumeClaimSpec{AccessModes: modes(n)}}
			})
			holds(t, r.Numbers(t, 1)[0], "spec.accessModes", func(n int) runtime.Object {
				return &core.PersistentVolume{Spec: core.PersistentVolumeSpec{AccessModes: modes(n)}}
			})
		},
		"labels of an object": a.podsOf(0,
			most("metadata.labels", func(p *corev1.Pod, n int) { p.Labels = numbered(n) })),
		"owner references, and finalizers, of an object": a.podsOf(0,
			most("metadata.ownerReferences", func(p *corev1.Pod, n int) { p.OwnerReferences = ownersOf(n) }),
			most("metadata.finalizers", func(p *corev1.Pod, n int) { p.Finalizers = many(n, "example.com/f%d") })),
		"managers of an object's fields": func(t *testing.T, r docs.Row) {
			holds(t, r.Numbers(t, 1)[0], "metadata.managedFields", func(n int) runtime.Object {
				return &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: make([]metav1.ManagedFieldsEntry, n)}}
			})
		},
		"what a role grants: verbs times groups times resources times names, all rules together": func(t *testing.T, r docs.Row) {
			if n := r.Numbers(t, 1); n[0] != maxGrants { // TestRolesThatGrantTooMuch
				t.Errorf("the row says %d", n)
			}
		},
		"rules of a role": func(t *testing.T, r docs.Row) {
			holds(t, r.Numbers(t, 1)[0], "rules", func(n int) runtime.Object { return &rbac.Role{Rules: make([]rbac.PolicyRule, n)} })
		},
		"what is given by a role or a binding, times the strings in the rules that the giver has by all his bindings and 8 for each rule, as each is compared with each; without the right to escalate or bind": func(t *testing.T, r docs.Row) {
			if n := r.Numbers(t, 1); n[len(n)-1] != maxCompared { // TestWhatIsGivenIsBounded
				t.Errorf("the row says %d", n)
			}
		},
		"bytes of the expressions of a ResourceClaim, its template or a DeviceClass, together": func(t *testing.T, r docs.Row) {
			if n := r.Numbers(t, 1); n[0] != maxExpressionBytes { // TestExpressionsOfDevices
				t.Errorf("the row says %d", n)
			}
		},
		"bytes of labels and annotations of a node's own lease": func(t *testing.T, r docs.Row) {
			if n := r.Numbers(t, 1); n[0] != maxLeaseNotes { // TestLeasesOfNodes
				t.Errorf("the row says %d", n)
			}
		},
		"groups of somebody in an access review": func(t *testing.T, r docs.Row) {
			if n := r.Numbers(t, 1); n[0] != maxReviewGroups { // TestLongSelectorsInReviews
				t.Errorf("the row says %d", n)
			}
		},
		"containers of a pod, of all sorts together": a.podsOf(0,
			most("spec.containers", manyContainers),
			most("spec.containers", func(p *corev1.Pod, n int) {
				manyContainers(p, n-1)
				p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "busybox"}}
			})),
		"host ports of a pod; ports of all its containers": func(t *testing.T, r docs.Row) {
			ports := func(host bool) func(p *corev1.Pod, n int) {
				return func(p *corev1.Pod, n int) {
					for i := range n {
						port := corev1.ContainerPort{ContainerPort: int32(1000 + i)}
						if host {
							port.HostPort = port.ContainerPort
						}
						p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, port)
					}
				}
			}
			a.podsOf(0, most("spec.containers.ports", ports(true)))(t, r)
			a.podsOf(1, most("spec.containers.ports", ports(false)))(t, r)
		},
		"paths in the volumes of a pod that are made of others' keys, and their sources, together": func(t *testing.T, r docs.Row) {
			holds(t, r.Numbers(t, 1)[0], "spec.volumes.items", func(n int) runtime.Object {
				items := func(n int) []core.KeyToPath { return make([]core.KeyToPath, n) }
				return &core.Pod{Spec: core.PodSpec{Volumes: []core.Volume{
					{VolumeSource: core.VolumeSource{ConfigMap: &core.ConfigMapVolumeSource{Items: items(1)}}},
					{VolumeSource: core.VolumeSource{Secret: &core.SecretVolumeSource{Items: items(1)}}},
					{VolumeSource: core.VolumeSource{DownwardAPI: &core.DownwardAPIVolumeSource{Items: make([]core.DownwardAPIVolumeFile, 1)}}},
					{VolumeSource: core.VolumeSource{Projected: &core.ProjectedVolumeSource{Sources: []core.VolumeProjection{
						{ConfigMap: &core.ConfigMapProjection{Items: items(1)}}, {Secret: &core.SecretProjection{Items: items(1)}},
						{DownwardAPI: &core.DownwardAPIProjection{Items: make([]core.DownwardAPIVolumeFile, n-8)}}}}}},
				}}}
			})
		},
		"volumes of a pod": a.podsOf(0, most("spec.volumes", func(p *corev1.Pod, n int) {
			for _, name := range many(n, "v%d") {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
					EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			}
		})),
		"claims of devices of a pod": a.podsOf(0, most("spec.resourceClaims", func(p *corev1.Pod, n int) {
			for _, name := range many(n, "claim-%d") {
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
			}
		})),
		"resources that a pod names, in all containers and the overhead, and those that are said of its containers": func(t *testing.T, r docs.Row) {
			a.podsOf(0,
				most("spec.containers.resources", func(p *corev1.Pod, n int) {
					list := resources(n)
					p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
				}),
				most("spec.containers.resources", func(p *corev1.Pod, n int) { // each in a container of its own
					manyContainers(p, n)
					for name := range resources(n) {
						n--
						list := corev1.ResourceList{name: resource.MustParse("1")}
						p.Spec.Containers[n].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
					}
				}))(t, r)
			holds(t, r.Numbers(t, 1)[0], "spec.containers.resources", func(n int) runtime.Object {
				list := core.ResourceList{}
				for name, q := range resources(n) {
					list[core.ResourceName(name)] = q
				}
				return &core.Pod{Spec: core.PodSpec{Overhead: list}}
			})
			holds(t, r.Numbers(t, 1)[0], "status.containerStatuses.resources", func(n int) runtime.Object {
				list := core.ResourceList{}
				for name, q := range resources(n) {
					list[core.ResourceName(name)] = q
				}
				return &core.Pod{Status: core.PodStatus{ContainerStatuses: []core.ContainerStatus{{AllocatedResources: list}}}}
			})
		},
		// Two more are given to a pod.
		"tolerations": a.podsOf(0, most("spec.tolerations", func(p *corev1.Pod, n int) {
			p.Spec.Tolerations = make([]corev1.Toleration, n-2)
			fillTolerations(p)
		})),
		"scheduling gates": a.podsOf(0, most("spec.schedulingGates", func(p *corev1.Pod, n int) {
			for _, name := range many(n, "example.com/g%d") {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
			}
		})),
		"terms of pod affinity and anti-affinity, required and preferred together": a.podsOf(0, most("spec.affinity",
			func(p *corev1.Pod, n int) {
				required, preferred := podTerms(p)
				*required = terms(n / 2)
				for _, t := range terms(n - n/2) {
					*preferred = append(*preferred, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: t})
				}
			})),
		"topology spread constraints": a.podsOf(0, most("spec.topologySpreadConstraints", func(p *corev1.Pod, n int) {
			p.Spec.TopologySpreadConstraints = spread(n)
		})),
		"node affinity terms, required and preferred each": a.podsOf(0,
			most("requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", func(p *corev1.Pod, n int) {
				nodeAffinity(p).RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: nodeTerms(n, 1, 1)}
			}),
			most("nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution", func(p *corev1.Pod, n int) {
				for _, t := range nodeTerms(n, 1, 1) {
					of := &nodeAffinity(p).PreferredDuringSchedulingIgnoredDuringExecution
					*of = append(*of, corev1.PreferredSchedulingTerm{Weight: 1, Preference: t})
				}
			})),
		"entries of all node affinity terms of a pod, with their values": a.podsOf(0,
			most("spec.affinity.nodeAffinity", func(p *corev1.Pod, n int) {
				nodeAffinity(p).RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
					NodeSelectorTerms: append(nodeTerms(1, 1, n/2-1), nodeTerms(1, 1, n-n/2-1)...)}
			})),
		"entries of a selector or term": a.selectors,
		"namespaces of a pod affinity term": a.podsOf(0, most("[0].namespaces", func(p *corev1.Pod, n int) {
			required, _ := podTerms(p)
			*required = terms(1)
			(*required)[0].Namespaces = many(n, "ns-%d")
		})),
		"matchLabelKeys, mismatchLabelKeys": a.podsOf(0,
			most("topologySpreadConstraints[0].matchLabelKeys", func(p *corev1.Pod, n int) {
				p.Spec.TopologySpreadConstraints = spread(1)
				p.Spec.TopologySpreadConstraints[0].MatchLabelKeys = many(n, "k%d")
			}),
			most("[0].matchLabelKeys", func(p *corev1.Pod, n int) {
				required, _ := podTerms(p)
				*required = terms(1)
				(*required)[0].MatchLabelKeys = many(n, "k%d")
			}),
			most("[0].mismatchLabelKeys", func(p *corev1.Pod, n int) {
				required, _ := podTerms(p)
				*required = terms(1)
				(*required)[0].MismatchLabelKeys = many(n, "k%d")
			})),
		"bytes of the status of a pod, as protobuf, whoever writes it": a.podStatusBytes,
		"terminationGracePeriodSeconds":                                a.grace,
		"taints, and conditions, of a node": func(t *testing.T, r docs.Row) {
			n := r.Numbers(t, 1)[0]
			holds(t, n, "spec.taints", func(n int) runtime.Object {
				return &core.Node{Spec: core.NodeSpec{Taints: make([]core.Taint, n)}}
			})
			holds(t, n, "status.conditions", func(n int) runtime.Object {
				return &core.Node{Status: core.NodeStatus{Conditions: make([]core.NodeCondition, n)}}
			})
			a.nodes(t, n, "spec.taints", func(node *corev1.Node, n int) {
				for _, key := range many(n, "example.com/t%d") {
					node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
				}
			})
		},
		"resources that a node has": func(t *testing.T, r docs.Row) {
			a.nodes(t, r.Numbers(t, 1)[0], "status.capacity", func(node *corev1.Node, n int) { node.Status.Capacity = resources(n) })
			a.nodes(t, r.Numbers(t, 1)[0], "status.allocatable", func(node *corev1.Node, n int) { node.Status.Allocatable = resources(n) })
		},
	})
}

// limited is a pod with so many of what a field bounds.
type limited struct {
	field string
	give  func(p *corev1.Pod, n int)
}

func most(field string, give func(p *corev1.Pod, n int)) limited { return limited{field, give} }

// podsOf tries pods with as many as the row's number says, and with one more.
func (a *admissionTest) podsOf(number int, cases ...limited) func(*testing.T, docs.Row) {
	return func(t *testing.T, r docs.Row) {
		bound := int(r.Numbers(t, number+1)[number])
		for _, c := range cases {
			if _, err := a.dry(func(p *corev1.Pod) { c.give(p, bound) }); err != nil {
				t.Errorf("%s: %d: %v", c.field, bound, err)
			}
			_, err := a.dry(func(p *corev1.Pod) { c.give(p, bound+1) })
			wantStatus(t, err, 422, c.field+tooMany(int64(bound)))
		}
	}
}

func tooMany(bound int64) string {
	return fmt.Sprintf(": Too many: %d: must have at most %d items", bound+1, bound)
}

func (a *admissionTest) dry(change func(p *corev1.Pod)) (*corev1.Pod, error) {
	return a.try(metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, change)
}

// fillsNamespace makes as many objects in the namespace kube-public as it may have, and is
// refused one more.
func fillsNamespace(t *testing.T, bound int64, create func(i int64) error) {
	t.Helper()
	for i := range bound {
		if err := create(i); err != nil {
			t.Fatal(err)
		}
	}
	wantStatus(t, create(bound), 403, fmt.Sprintf("a namespace may have %d of them at most, and kube-public has as many", bound))
}

// holds asks the check itself, of what no client can send.
func holds(t *testing.T, bound int64, field string, object func(n int) runtime.Object) {
	t.Helper()
	if err := checkLimits(object(int(bound))); err != nil {
		t.Errorf("%s: %d: %v", field, bound, err)
	}
	wantStatus(t, checkLimits(object(int(bound)+1)), 422, field+tooMany(bound))
}

func (a *admissionTest) nodes(t *testing.T, bound int64, field string, give func(node *corev1.Node, n int)) {
	t.Helper()
	create := func(n int) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		give(node, n)
		_, err := a.server.client(t).CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// One of Berth's own is given to a new node, and does not count.
	if err := create(int(bound)); err != nil {
		t.Errorf("%s: %d: %v", field, bound, err)
	}
	wantStatus(t, create(int(bound)+1), 422, field+tooMany(bound))
}

func (a *admissionTest) amounts(t *testing.T, r docs.Row) {
	bound := r.Numbers(t, 1)[0]
	for name, q := range map[corev1.ResourceName]struct{ most, more, told string }{
		"memory": {fmt.Sprint(bound), fmt.Sprint(bound + 1), "256Ti"}, "example.com/gpu": {fmt.Sprint(bound), fmt.Sprint(bound + 1), "256Ti"},
		"cpu": {fmt.Sprintf("%dm", bound), fmt.Sprintf("%dm", bound+1), "281474976710656m"},
	} {
		if number := strings.TrimSuffix(q.told, "m"); !strings.Contains(r.Says, number) {
			t.Errorf("the row says %q, and not %s", r.Says, number)
		}
		list := func(amount string) corev1.ResourceList { return corev1.ResourceList{name: resource.MustParse(amount)} }
		field := fmt.Sprintf("[%s]: Invalid value", name)
		for in, give := range map[string]func(p *corev1.Pod, amount string){
			"requests": func(p *corev1.Pod, amount string) {
				p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list(amount), Limits: list(amount)}
			},
			"limits": func(p *corev1.Pod, amount string) {
				p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: list(amount)}
			},
		} {
			if _, err := a.dry(func(p *corev1.Pod) { give(p, q.most) }); err != nil {
				t.Errorf("%s of %s of %s: %v", in, q.most, name, err)
			}
			_, err := a.dry(func(p *corev1.Pod) { give(p, q.more) })
			wantStatus(t, err, 422, "resources."+in+field)
			wantStatus(t, err, 422, "must be at most "+q.told)
		}
		overhead := func(amount string) error {
			return checkLimits(&core.Pod{Spec: core.PodSpec{Overhead: core.ResourceList{core.ResourceName(name): resource.MustParse(amount)}}})
		}
		if err := overhead(q.most); err != nil {
			t.Errorf("an overhead of %s: %v", q.most, err)
		}
		wantStatus(t, overhead(q.more), 422, "spec.overhead"+field)
	}
}

func (a *admissionTest) podsOnNode(t *testing.T, r docs.Row) {
	bound := r.Numbers(t, 2)
	ctx := context.Background()
	d := newDouble(t)
	s := start(t, d, nil)
	var ps []fsm.Proposal
	for i := range bound[0] - 1 {
		p := testPod(fmt.Sprintf("full-%d", i))
		p.Namespace, p.UID, p.Spec.NodeName = "default", types.UID(p.Name), "n1"
		ps = append(ps, fsm.Proposal{User: "admin", Groups: []string{"system:masters"}, Command: &fsm.AdmitPod{Pod: fsm.PodWire{Object: p}}})
	}
	rs, err := d.Propose(ctx, ps...)
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range rs {
		if err := result.Err(); err != nil {
			t.Fatal(err)
		}
	}
	one := func(name string) error {
		p := testPod(name)
		p.Spec.NodeName = "n1"
		_, err := s.client(t).CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	if err := one("last"); err != nil {
		t.Errorf("pod %d of a node: %v", bound[0], err)
	}
	wantStatus(t, one("beyond"), int32(bound[1]), fmt.Sprintf("spec.nodeName: node n1 would have more than %d pods", bound[0]))
}

func (a *admissionTest) grace(t *testing.T, r docs.Row) {
	bound := r.Numbers(t, 1)[0]
	more := bound + 1
	if _, err := a.dry(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &bound }); err != nil {
		t.Error(err)
	}
	_, err := a.dry(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &more })
	wantStatus(t, err, 422, fmt.Sprintf("spec.terminationGracePeriodSeconds: Invalid value: %d: must be less than %d", more, more))
}

// podStatusBytes fills a status up to the bound, and by a byte more.
func (a *admissionTest) podStatusBytes(t *testing.T, r docs.Row) {
	bound := int(r.Numbers(t, 1)[0])
	p := a.must(metav1.CreateOptions{}, func(*corev1.Pod) {})
	said := func(bytes int) error {
		full := p.DeepCopy()
		full.Status.Message = strings.Repeat("x", bytes)
		full.Status.Message = full.Status.Message[full.Status.Size()-bytes:]
		if full.Status.Size() != bytes {
			t.Fatalf("the status has %d bytes, not %d", full.Status.Size(), bytes)
		}
		_, err := a.server.client(t).CoreV1().Pods("default").UpdateStatus(context.Background(), full, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := said(bound); err != nil {
		t.Error(err)
	}
	wantStatus(t, said(bound+1), 422, fmt.Sprintf("status: Too long: may not be more than %d bytes", bound))
}

func (a *admissionTest) selectors(t *testing.T, r docs.Row) {
	expressions := func(n, values int) (out []metav1.LabelSelectorRequirement) {
		for _, key := range many(n, "k%d") {
			out = append(out, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: many(values, "v%d")})
		}
		return out
	}
	inTerm := func(p *corev1.Pod, s *metav1.LabelSelector) {
		required, _ := podTerms(p)
		*required = terms(1)
		(*required)[0].LabelSelector = s
	}
	a.podsOf(0,
		most("spec.nodeSelector", func(p *corev1.Pod, n int) { p.Spec.NodeSelector = numbered(n) }),
		most("labelSelector.matchLabels", func(p *corev1.Pod, n int) { inTerm(p, &metav1.LabelSelector{MatchLabels: numbered(n)}) }),
		most("labelSelector.matchExpressions", func(p *corev1.Pod, n int) {
			inTerm(p, &metav1.LabelSelector{MatchExpressions: expressions(n, 1)})
		}),
		most("namespaceSelector.matchLabels", func(p *corev1.Pod, n int) {
			inTerm(p, &metav1.LabelSelector{})
			required, _ := podTerms(p)
			(*required)[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: numbered(n)}
		}),
		most("topologySpreadConstraints[0].labelSelector.matchLabels", func(p *corev1.Pod, n int) {
			p.Spec.TopologySpreadConstraints = spread(1)
			p.Spec.TopologySpreadConstraints[0].LabelSelector = &metav1.LabelSelector{MatchLabels: numbered(n)}
		}),
		most("nodeSelectorTerms[0].matchExpressions", func(p *corev1.Pod, n int) {
			nodeAffinity(p).RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: nodeTerms(1, n, 1)}
		}),
	)(t, r)
	a.podsOf(1,
		most("labelSelector.matchExpressions[0].values", func(p *corev1.Pod, n int) {
			inTerm(p, &metav1.LabelSelector{MatchExpressions: expressions(1, n)})
		}),
		most("nodeSelectorTerms[0].matchExpressions[0].values", func(p *corev1.Pod, n int) {
			nodeAffinity(p).RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: nodeTerms(1, 1, n)}
		}),
	)(t, r)
	bound := r.Numbers(t, 1)[0]
	holds(t, bound, "spec.selector", func(n int) runtime.Object {
		return &core.Service{Spec: core.ServiceSpec{Selector: numbered(n)}}
	})
	budget := func(n int) error {
		_, err := a.server.client(t).PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "b"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: numbered(n)}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := budget(int(bound)); err != nil {
		t.Error(err)
	}
	wantStatus(t, budget(int(bound)+1), 422, "spec.selector.matchLabels"+tooMany(bound))
}

// many are n words.
func many(n int, format string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return out
}

func ownersOf(n int) (out []metav1.OwnerReference) {
	for _, name := range many(n, "o%d") {
		out = append(out, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: types.UID(name)})
	}
	return out
}

func resources(n int) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range many(n, "example.com/r%d") {
		list[corev1.ResourceName(name)] = resource.MustParse("1")
	}
	return list
}
