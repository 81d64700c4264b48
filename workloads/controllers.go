package workloads

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/bootstrap"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/cronjob"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/replication"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"
	"k8s.io/kubernetes/pkg/controller/volume/ephemeral"
	"k8s.io/kubernetes/pkg/controller/volume/persistentvolume"
	"k8s.io/kubernetes/pkg/controller/volume/pvcprotection"
	"k8s.io/kubernetes/pkg/controller/volume/pvprotection"
	"k8s.io/kubernetes/pkg/controller/volume/vacprotection"
	utilclock "k8s.io/utils/clock"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers"
)

// kindRows are the rows of a kind.
type kindRows struct {
	object runtime.Object
	rows   *informers.Rows
}

// kinds are the kinds that controllers look at.
func kinds(open opening) []kindRows {
	return []kindRows{
		{&corev1.Pod{}, pods()},
		{&corev1.Node{}, nodes()},
		{&corev1.Service{}, informers.Plain("services")},
		{&corev1.Secret{}, secrets(open)},
		{&corev1.ServiceAccount{}, informers.Plain("serviceaccounts")},
		{&corev1.Endpoints{}, informers.Plain("endpoints")},
		{&corev1.ReplicationController{}, informers.Plain("replicationcontrollers")},
		{&corev1.PersistentVolume{}, informers.InNoNamespace(fsm.PersistentVolumes)},
		{&corev1.PersistentVolumeClaim{}, informers.Plain(fsm.VolumeClaims)},
		{&storagev1.StorageClass{}, informers.InNoNamespace(fsm.StorageClasses)},
		{&storagev1.VolumeAttributesClass{}, informers.InNoNamespace(fsm.VolumeAttributesClasses)},
		{&storagev1.CSINode{}, informers.InNoNamespace(fsm.CSINodes)},
		{&storagev1.VolumeAttachment{}, informers.InNoNamespace(fsm.VolumeAttachments)},
		{&appsv1.ReplicaSet{}, informers.Plain(fsm.ReplicaSets)},
		{&appsv1.Deployment{}, informers.Plain("deployments")},
		{&appsv1.StatefulSet{}, statefulSets()},
		{&appsv1.DaemonSet{}, daemonSets()},
		{&appsv1.ControllerRevision{}, revisions()},
		{&batchv1.Job{}, informers.Plain("jobs")},
		{&batchv1.CronJob{}, informers.Plain("cronjobs")},
		{&discoveryv1.EndpointSlice{}, informers.Plain("endpointslices")},
		{&rbacv1.ClusterRole{}, informers.InNoNamespace(fsm.ClusterRoles)},
		{&autoscalingv2.HorizontalPodAutoscaler{}, informers.Plain(fsm.Autoscalers)},
		{&admissionv1.ValidatingAdmissionPolicy{}, informers.InNoNamespace(fsm.ValidatingPolicies)},
		{&networkingv1.ServiceCIDR{}, informers.InNoNamespace(fsm.ServiceCIDRs)},
		{&networkingv1.IPAddress{}, informers.InNoNamespace(fsm.IPAddresses)},
		{&flowcontrolv1.FlowSchema{}, informers.InNoNamespace(fsm.FlowSchemas)},
		{&flowcontrolv1.PriorityLevelConfiguration{}, informers.InNoNamespace(fsm.PriorityLevels)},
		{&certificatesv1.CertificateSigningRequest{}, informers.InNoNamespace(fsm.CertificateRequests)},
	}
}

// newFactory gives a factory whose informers are the state's, and what tells them.
func newFactory(state State, open opening) (factory, *informers.Feed) {
	return newFactoryOf(state, append(kinds(open), deviceKinds()...))
}

func newFactoryOf(state State, of []kindRows) (factory, *informers.Feed) {
	made, f := clientinformers.NewSharedInformerFactory(nil, 0), informers.NewFeed(state)
	for _, k := range of {
		k.rows.Rests = rests
		i := f.Add(k.rows)
		made.InformerFor(k.object, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return i })
	}
	return made, f
}

// controller is one of Kubernetes' controllers.
type controller interface {
	Run(ctx context.Context, workers int)
}

type factory = clientinformers.SharedInformerFactory

// entry is a controller that is run, how many objects it works on at a time (what
// kube-controller-manager has by default, but for Deployments), and in which pods it has an interest.
type entry struct {
	name    string
	workers int
	pods    *informers.Interest
	make    func(ctx context.Context, client kubernetes.Interface, f factory) (controller, error)
}

const (
	// endpointsOfASlice is how many pods are in one endpoint slice.
	endpointsOfASlice = 100
	// mirroredOfASubset is how many addresses of a subset of Endpoints are copied into slices.
	mirroredOfASubset = 1000
	// volumeSync is how often the binder looks at all volumes and claims again: at those
	// that it failed at.
	volumeSync = 15 * time.Second
)

// alone is a controller that runs by itself, whatever the number of workers.
type alone struct {
	it interface{ Run(ctx context.Context) }
}

// Run implements controller.
func (a alone) Run(ctx context.Context, _ int) { a.it.Run(ctx) }

// deploymentLooks is how many Deployments are looked at at a time, for each core. Of the five that Kubernetes looks at each waits for the log
// several times, and hundreds wait for them, whose pods come one Deployment's after the other's. Those that are looked at together are
// written together (server/convoy.go), and their pods are made, bound and told of together. With many more all of them go on at the same moment,
// and keep the leader's heartbeats waiting.
const deploymentLooks = 12

// jobBatch is how long a Job is looked at once at most for all that happens to its pods. Kubernetes' second is for an API server that
// is far away; here it would be most of the time that a Job takes.
const jobBatch = 100 * time.Millisecond

// lookAtJobsOften makes it so, before the first controller of Jobs is made.
var lookAtJobsOften = sync.OnceFunc(func() { job.SyncJobBatchPeriod = jobBatch })

// entries is the list of what is run, by the clock of whoever takes one.
func entries(now utilclock.Clock) []entry {
	return []entry{
		{"deployment", deploymentLooks * goruntime.GOMAXPROCS(0), informers.InObjectsOf("deployments"), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return deployment.NewDeploymentController(ctx, statusesLater{f.Apps().V1().Deployments()}, f.Apps().V1().ReplicaSets(), f.Core().V1().Pods(), c)
		}},
		{"statefulset", 5, informers.InObjectsOf("statefulsets"), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return statefulset.NewStatefulSetController(ctx, f.Core().V1().Pods(), f.Apps().V1().StatefulSets(),
				f.Core().V1().PersistentVolumeClaims(), f.Apps().V1().ControllerRevisions(), c), nil
		}},
		{"daemonset", 2, informers.InObjectsOf("daemonsets"), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return daemon.NewDaemonSetsController(ctx, f.Apps().V1().DaemonSets(), f.Apps().V1().ControllerRevisions(),
				f.Core().V1().Pods(), f.Core().V1().Nodes(), c, daemonBackoffs(now))
		}},
		{"job", 5, informers.InObjectsOf("jobs"), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return job.NewController(ctx, c, f.Core().V1().Pods(), f.Batch().V1().Jobs(), nil, nil)
		}},
		{"cronjob", 5, nil, func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return cronjob.NewControllerV2(ctx, f.Batch().V1().Jobs(), f.Batch().V1().CronJobs(), withKnownJobs{c, f.Batch()})
		}},
		{"ttlafterfinished", 5, nil, func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return ttlafterfinished.New(ctx, f.Batch().V1().Jobs(), c), nil
		}},
		{"replication", 5, informers.InObjectsOf("replicationcontrollers"), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return replication.NewReplicationManager(ctx, f.Core().V1().Pods(), f.Core().V1().ReplicationControllers(), c, replicaset.BurstReplicas), nil
		}},
		{"endpoint", 5, informers.InServices(), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return endpoint.NewEndpointController(ctx, f.Core().V1().Pods(), f.Core().V1().Services(), f.Core().V1().Endpoints(), c, 0), nil
		}},
		{"endpointslice", 5, informers.InServices(), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return endpointslice.NewController(ctx, f.Core().V1().Pods(), f.Core().V1().Services(), f.Core().V1().Nodes(),
				f.Discovery().V1().EndpointSlices(), endpointsOfASlice, c, 0), nil
		}},
		{"endpointslicemirroring", 5, nil, func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return endpointslicemirroring.NewController(ctx, f.Core().V1().Endpoints(), f.Discovery().V1().EndpointSlices(), f.Core().V1().Services(),
				mirroredOfASubset, c, 0), nil
		}},
		{"clusterrole-aggregation", 5, nil, func(_ context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return clusterroleaggregation.NewClusterRoleAggregation(f.Rbac().V1().ClusterRoles(), c.RbacV1()), nil
		}},
		{policyController, 5, nil, newPolicyStatus},
		{"persistent-volume-binder", 1, nil, func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			binder, err := persistentvolume.NewController(ctx, persistentvolume.ControllerParameters{
				KubeClient: c, SyncPeriod: volumeSync, EnableDynamicProvisioning: true,
				VolumeInformer: f.Core().V1().PersistentVolumes(), ClaimInformer: claimsLater{f.Core().V1().PersistentVolumeClaims()},
				ClassInformer: f.Storage().V1().StorageClasses(), PodInformer: f.Core().V1().Pods(), NodeInformer: f.Core().V1().Nodes(),
			})
			return alone{binder}, err
		}},
		{"pvc-protection-controller", 1, informers.WithClaims(), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return pvcprotection.NewPVCProtectionController(klog.FromContext(ctx), f.Core().V1().PersistentVolumeClaims(), f.Core().V1().Pods(), c)
		}},
		{"pv-protection-controller", 1, nil, func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return pvprotection.NewPVProtectionController(klog.FromContext(ctx), f.Core().V1().PersistentVolumes(), c), nil
		}},
		{"volumeattributesclass-protection-controller", 1, nil, func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return vacprotection.NewVACProtectionController(klog.FromContext(ctx), c, f.Core().V1().PersistentVolumeClaims(),
				f.Core().V1().PersistentVolumes(), f.Storage().V1().VolumeAttributesClasses())
		}},
		// One at a time: of two equal ranges that go together, only one finds that the other is left.
		{"service-cidrs-controller", 1, nil, func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return servicecidrs.NewController(ctx, f.Networking().V1().ServiceCIDRs(), f.Networking().V1().IPAddresses(), c), nil
		}},
		{"token-cleaner", 1, nil, func(_ context.Context, c kubernetes.Interface, f factory) (controller, error) {
			cleaner, err := bootstrap.NewTokenCleaner(c, f.Core().V1().Secrets(), bootstrap.DefaultTokenCleanerOptions())
			return alone{cleaner}, err
		}},
		{"ephemeral-volume-controller", 5, informers.WithClaims(), func(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
			return ephemeral.NewController(ctx, c, f.Core().V1().Pods(), f.Core().V1().PersistentVolumeClaims())
		}},
	}
}

// Names are the names of the controllers that can be left out.
func Names() []string {
	names := []string{autoscalerController, tokensController, attachmentsController, claimsController}
	for _, e := range entries(nil) {
		names = append(names, e.name)
	}
	return names
}

// construct makes every controller; each registers its handlers with the factory's
// informers.
func construct(ctx context.Context, state State, config func(controller string) *rest.Config, made factory, f *informers.Feed, o Options) ([]begun, error) {
	lookAtJobsOften()
	var out []begun
	for _, e := range entries(o.clock()) {
		if slices.Contains(o.Off, e.name) {
			continue
		}
		c, err := kubernetes.NewForConfig(config(e.name))
		if err != nil {
			return nil, fmt.Errorf("client of the controller %s: %w", e.name, err)
		}
		f.Begins(e.pods)
		m, err := e.make(ctx, o.client(e.name, c), made)
		if err != nil {
			return nil, fmt.Errorf("controller %s: %w", e.name, err)
		}
		out = append(out, func(ctx context.Context) { m.Run(ctx, e.workers) })
	}
	f.Begins(nil)
	definitions, err := newDefinitions(ctx, config(definitionController), f)
	if err != nil {
		return nil, err
	}
	certificates, err := newCertificates(ctx, config, made, o.Authority)
	if err != nil {
		return nil, err
	}
	flows, err := newFlowControl(config(flowController), state, made)
	if err != nil {
		return nil, err
	}
	available, err := newAvailability(config(availability), made, f, o.Aggregation)
	if err != nil {
		return nil, err
	}
	trust, err := newAuthentication(config(authentication), state, o.Aggregation)
	if err != nil {
		return nil, err
	}
	out = slices.Concat(out, definitions, certificates, []begun{flows, available, trust})
	if !slices.Contains(o.Off, attachmentsController) {
		attaching, err := newAttachments(config(attachmentsController), state, made)
		if err != nil {
			return nil, err
		}
		out = append(out, attaching)
	}
	if !slices.Contains(o.Off, claimsController) {
		claiming, err := newDeviceClaims(config, state, o.clock(), made)
		if err != nil {
			return nil, err
		}
		out = append(out, claiming)
	}
	if o.Tokens.Signer != nil && !slices.Contains(o.Off, tokensController) {
		filling, err := newAccountTokens(ctx, config(tokensController), state, made, o.Open, o.Tokens)
		if err != nil {
			return nil, err
		}
		out = append(out, filling)
	}
	if slices.Contains(o.Off, autoscalerController) {
		return out, nil
	}
	autoscaler, err := newAutoscaler(ctx, config(autoscalerController), made, o.Autoscaler)
	return append(out, autoscaler), err
}

// client is a controller's client, by which it writes pods as Pods says, and workloads as Workloads does.
func (o *Options) client(controller string, by kubernetes.Interface) kubernetes.Interface {
	if o.Pods != nil {
		by = withPods{by, o.Pods(controller)}
	}
	if o.Workloads != nil {
		by = newWithWorkloads(by, o.Workloads(controller))
	}
	return by
}

// begun runs a controller that is made, until the context ends.
type begun func(ctx context.Context)
