package workloads

import (
	"context"
	"fmt"
	"sync"
	"time"

	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	"k8s.io/kubernetes/pkg/controlplane/controller/crdregistration"

	"github.com/berth-dev/berth/fsm"
)

const (
	// registration keeps the APIServices of what the servers serve themselves.
	registration = "autoregister"
	// registrationWorkers is how many are looked at at a time.
	registrationWorkers = 5
	// registrationPause is how long is waited until every server knows of them.
	registrationPause = time.Second
	// registeredCustom bounds those of custom kinds, so that there is always room for the servers of others.
	registeredCustom = fsm.MaxAPIServices / 2
	// The priority of the first built-in group, and how much less each that follows has: more than custom kinds' have, which is
	// upstream's 1000.
	firstGroupPriority, groupPriorityStep = 18000, 100
	builtInVersionPriority                = 15
)

// newRegistration makes Kubernetes' own controllers that keep an APIService for every version of a group that the servers
// serve themselves, custom kinds' too: they are put back when somebody changes or deletes them.
func newRegistration(config *rest.Config, state State, services *apiServices, definitions crdinformers.CustomResourceDefinitionInformer, builtIn []schema.GroupVersion) (begun, error) {
	client, err := aggregatorclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", registration, err)
	}
	keeper := autoregister.NewAutoRegisterController(services, client.ApiregistrationV1())
	custom := crdregistration.NewCRDRegistrationController(definitions, &boundedRegistration{keeper: keeper, names: map[string]bool{}})
	return func(ctx context.Context) {
		for state.View().Version() < fsm.SinceAPIServices {
			select {
			case <-ctx.Done():
				return
			case <-time.After(registrationPause):
			}
		}
		if !cache.WaitForCacheSync(ctx.Done(), definitions.Informer().HasSynced) {
			return // who waits for the initial sync below would wait for ever
		}
		var running sync.WaitGroup
		defer running.Wait()
		for _, s := range builtInServices(builtIn) {
			keeper.AddAPIServiceToSync(s)
		}
		running.Go(func() { custom.Run(registrationWorkers, ctx.Done()) })
		custom.WaitForInitialSync() // before it, those of custom kinds would be nobody's
		keeper.Run(registrationWorkers, ctx.Done())
	}, nil
}

// builtInServices are those of the groups in the order of their priority.
func builtInServices(versions []schema.GroupVersion) (out []*apiregistrationv1.APIService) {
	priority, group := int32(firstGroupPriority), ""
	for i, v := range versions {
		if i > 0 && v.Group != group {
			priority -= groupPriorityStep
		}
		group = v.Group
		out = append(out, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: v.Version + "." + v.Group},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: v.Group, Version: v.Version, GroupPriorityMinimum: priority, VersionPriority: builtInVersionPriority,
			},
		})
	}
	return out
}

// boundedRegistration registers so many versions of custom kinds' groups, and no more.
type boundedRegistration struct {
	keeper autoregister.AutoAPIServiceRegistration

	mu    sync.Mutex
	names map[string]bool
}

// AddAPIServiceToSync implements crdregistration.AutoAPIServiceRegistration.
func (b *boundedRegistration) AddAPIServiceToSync(s *apiregistrationv1.APIService) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.names[s.Name] && len(b.names) >= registeredCustom {
		return
	}
	b.names[s.Name] = true
	b.keeper.AddAPIServiceToSync(s)
}

// RemoveAPIServiceToSync implements crdregistration.AutoAPIServiceRegistration.
func (b *boundedRegistration) RemoveAPIServiceToSync(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.names, name)
	b.keeper.RemoveAPIServiceToSync(name)
}
