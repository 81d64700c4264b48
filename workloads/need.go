package workloads

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// need is that of controllers with a feed of their own, which are not made before there is something for them.
type need struct {
	once   *sync.Once
	arisen chan struct{} // closed then
}

func newNeed() need { return need{new(sync.Once), make(chan struct{})} }

func (n need) arise() { n.once.Do(func() { close(n.arisen) }) }

// needRetry is how long it is until a controller is begun again that could not go on with what it knew.
const needRetry = time.Second

// meet runs controllers from when they are needed on until ctx ends. keep returns when they cannot go on with what they know.
func (n need) meet(ctx context.Context, controller string, keep func(ctx context.Context) error) {
	select {
	case <-n.arisen:
	case <-ctx.Done():
		return
	}
	for {
		err := keep(ctx)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "A controller is begun again", "controller", controller)
		select {
		case <-time.After(needRetry):
		case <-ctx.Done():
		}
	}
}
