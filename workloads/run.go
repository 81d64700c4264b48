package workloads

import (
	"context"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/informers"
	"github.com/berth-dev/berth/pki"
)

// State is what the controllers look at.
type State = informers.State

// Options are what some controllers need to know.
type Options struct {
	// Now is the state's time, for those that can be given a clock; nil: the wall clock.
	Now func() time.Time
	// Authority names the certificate and the key that requests for certificates are signed
	// with; zero: they are not signed here.
	Authority  pki.Files
	Autoscaler Autoscaler
	// Off are the names of controllers that are not run.
	Off []string
	// Aggregation is about servers of others' that serve parts of the API.
	Aggregation Aggregation
	// Pods is how a controller writes pods; nil: by requests.
	Pods func(controller string) PodWriter
	// Workloads is how a controller writes ReplicaSets and statuses of Deployments; nil: by requests.
	Workloads func(controller string) WorkloadWriter
	// Tokens fill secrets that hold tokens of service accounts; without a signer nobody does.
	Tokens Tokens
	// Open gives a secret as it was before it was sealed.
	Open opening
}

// Run runs the controllers until ctx ends, and returns when all of them have. They begin
// with the state as it is: whoever calls has made sure that it is the latest. An error
// means that they cannot go on with what they know, and have to be begun again.
//
// config is how a controller is a client of the API.
func Run(ctx context.Context, state State, config func(controller string) *rest.Config, o Options) error {
	made, f := newFactory(state, o.Open)
	return follow(ctx, f, func(ctx context.Context) ([]begun, error) { return construct(ctx, state, config, made, f, o) })
}

// follow makes controllers, whose handlers f tells, and runs them until ctx ends, one of them panics or f cannot go on. It returns when all
// of them have ended.
func follow(ctx context.Context, f *informers.Feed, construct func(ctx context.Context) ([]begun, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	var running guard.Group
	defer running.Wait()
	defer cancel()
	controllers, err := construct(ctx)
	if err != nil {
		return err
	}
	at := f.Begin()
	for _, run := range controllers {
		running.Go(func() {
			ended := false
			defer func() {
				if !ended { // it panicked: all of them are begun again
					cancel()
				}
			}()
			run(ctx)
			ended = true
		})
	}
	return f.Follow(ctx, at)
}
