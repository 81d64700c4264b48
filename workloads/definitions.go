package workloads

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers"
)

// definitionController is the user that the controllers of custom kinds' definitions are:
// what they write is one status.
const definitionController = "customresourcedefinition"

// definitionWorkers is how many definitions are looked at at a time.
const definitionWorkers = 5

// newDefinitions makes the controllers that say of a definition whether its kind can be
// served, and by which names: Kubernetes' own.
func newDefinitions(ctx context.Context, config *rest.Config, f *informers.Feed) ([]begun, error) {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controllers of definitions: %w", err)
	}
	factory := externalversions.NewSharedInformerFactory(client, 0)
	i := f.Add(informers.InNoNamespace(fsm.CustomResourceDefinitions))
	factory.InformerFor(&apiextensionsv1.CustomResourceDefinition{}, func(clientset.Interface, time.Duration) cache.SharedIndexInformer { return i })
	definitions, writes := factory.Apiextensions().V1().CustomResourceDefinitions(), client.ApiextensionsV1()

	names := status.NewNamingConditionController(klog.FromContext(ctx), definitions, writes)
	schemas := nonstructuralschema.NewConditionController(definitions, writes)
	approvals := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(definitions, writes)
	establishing := establish.NewEstablishingController(definitions, writes)
	// A kind is established when its names are accepted. Upstream lets some seconds pass for other
	// servers to hear of it; here each serves it as soon as it has applied it.
	accepted := func(o any) {
		d, ok := o.(*apiextensionsv1.CustomResourceDefinition)
		if ok && apihelpers.IsCRDConditionTrue(d, apiextensionsv1.NamesAccepted) && !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
			establishing.QueueCRD(d.Name, 0)
		}
	}
	if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: accepted, UpdateFunc: func(_, now any) { accepted(now) }}); err != nil {
		return nil, err
	}
	return []begun{
		func(ctx context.Context) { names.RunWithContext(ctx) },
		func(ctx context.Context) { establishing.RunWithContext(ctx) },
		func(ctx context.Context) { schemas.RunWithContext(definitionWorkers, ctx) },
		func(ctx context.Context) { approvals.RunWithContext(definitionWorkers, ctx) },
	}, nil
}
