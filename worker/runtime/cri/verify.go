package cri

import (
	"context"
	"fmt"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// verifyInterval is how often it is made sure that what is listed as running lives, where it may not.
const verifyInterval = 10 * time.Second

// mayBeWrong says whether it is time to verify a listing. CRI-O hears of a container's end from conmon, in files that it watches. It says for
// ever that a container runs whose conmon was killed, and so it does, when it is started again, of one that ended after it had looked and
// before it watched.
func (r *Runtime) mayBeWrong() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.about.name != crio || time.Since(r.verified) < verifyInterval {
		return false
	}
	r.verified = time.Now()
	return true
}

// lives says whether a container lives that is listed as running. One that does not is known to have ended from then on: CRI-O looks at what
// it is told to stop.
func (r *Runtime) lives(ctx context.Context, ref string) (bool, error) {
	// A command that is none is run nowhere. It is refused, and where nothing lives that could run one as one in a container that is not there.
	one, cancel := asking(ctx)
	defer cancel()
	_, err := r.runtime.ExecSync(one, &criv1.ExecSyncRequest{ContainerId: ref})
	if !notFound(err) {
		return true, nil
	}
	other, cancel := asking(ctx)
	defer cancel()
	if _, err := r.runtime.StopContainer(other, &criv1.StopContainerRequest{ContainerId: ref}); err != nil && !notFound(err) {
		return false, fmt.Errorf("having container %s looked at, which does not live: %w", ref, asked(err))
	}
	r.log.Warn("a container has ended without the container runtime having seen it", "container", ref)
	return false, nil
}
