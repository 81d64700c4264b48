package workloads

import (
	"context"
	"fmt"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	flowcontrol "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"

	"github.com/berth-dev/berth/fsm"
)

// flowPause is how long is waited until it is tried again to keep the schemas and levels that every cluster has.
const flowPause = time.Second

// flowController keeps them.
const flowController = flowcontrol.PostStartHookName

// newFlowControl makes what keeps Kubernetes' own flow schemas and priority levels, when every server knows of them.
func newFlowControl(config *rest.Config, state State, f factory) (begun, error) {
	_, keep, err := flowcontrol.RESTStorageProvider{InformerFactory: f}.PostStartHook()
	if err != nil {
		return nil, fmt.Errorf("controller %s: %w", flowController, err)
	}
	return func(ctx context.Context) {
		for ctx.Err() == nil {
			if state.View().Version() >= fsm.SinceFlowControl {
				err := keep(genericapiserver.PostStartHookContext{LoopbackClientConfig: config, Context: ctx})
				if err == nil {
					<-ctx.Done() // it goes on by itself until then
					return
				}
				klog.FromContext(ctx).Error(err, "flow schemas and priority levels are not kept yet")
			}
			select {
			case <-ctx.Done():
			case <-time.After(flowPause):
			}
		}
	}, nil
}
