package workloads

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	resourceclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/metrics/pkg/client/external_metrics"

	"github.com/berth-dev/berth/guard"
)

// Autoscaler says how workloads are scaled. What is zero is what kube-controller-manager has
// by default.
type Autoscaler struct {
	// Period is how often each autoscaler looks.
	Period time.Duration
	// DownscaleStabilization: nothing is scaled in below what was asked for so lately.
	DownscaleStabilization time.Duration
	// TolerancePercent of deviation from the target change nothing.
	TolerancePercent int
	// CPUInitialization is how long after its begin a pod's processor time counts only while
	// it is ready; InitialReadinessDelay how long one that is not ready has not been.
	CPUInitialization, InitialReadinessDelay time.Duration
}

// DefaultAutoscaler is what kube-controller-manager has.
func DefaultAutoscaler() Autoscaler {
	return Autoscaler{
		Period: 15 * time.Second, DownscaleStabilization: 5 * time.Minute, TolerancePercent: 10,
		CPUInitialization: 5 * time.Minute, InitialReadinessDelay: 30 * time.Second,
	}
}

const (
	autoscalerController = "horizontal-pod-autoscaler"
	// autoscalerWorkers is how many autoscalers are worked on at a time.
	autoscalerWorkers = 5
	// mappingAge is how often the kinds that can be scaled are asked for again.
	mappingAge = 30 * time.Second
)

// newAutoscaler makes Kubernetes' own controller of HorizontalPodAutoscalers. It learns what
// pods use, and scales, through the API.
func newAutoscaler(ctx context.Context, config *rest.Config, f factory, o Autoscaler) (begun, error) {
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", autoscalerController, err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Discovery()))
	scales, err := scale.NewForConfig(config, mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(c.Discovery()))
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s, for scales: %w", autoscalerController, err)
	}
	resources, err := resourceclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s, for usage: %w", autoscalerController, err)
	}
	external, err := external_metrics.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s, for external metrics: %w", autoscalerController, err)
	}
	versions := custom_metrics.NewAvailableAPIsGetter(c.Discovery())
	it := podautoscaler.NewHorizontalController(ctx, c.CoreV1(), scales, c.AutoscalingV2(), mapper,
		metrics.NewRESTMetricsClient(resources, custom_metrics.NewForConfig(config, mapper, versions), external),
		f.Autoscaling().V2().HorizontalPodAutoscalers(), f.Core().V1().Pods(),
		o.Period, o.DownscaleStabilization, float64(o.TolerancePercent)/100, o.CPUInitialization, o.InitialReadinessDelay)
	return func(ctx context.Context) {
		invalidate := func(ctx context.Context) { custom_metrics.PeriodicallyInvalidate(versions, o.Period, ctx.Done()) }
		forget := func(ctx context.Context) {
			tick := time.NewTicker(mappingAge)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					mapper.Reset()
				}
			}
		}
		guard.Together(ctx, invalidate, forget, func(ctx context.Context) { it.Run(ctx, autoscalerWorkers) })
	}, nil
}
