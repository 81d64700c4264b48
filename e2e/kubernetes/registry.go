package main

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/e2e/machine"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// suiteRegistry is where most of the suite's images are.
const suiteRegistry = "registry.k8s.io"

// registry serves images that a spec wants fetched although they are on its node. All others are only there: what is served is held in memory.
type registry struct {
	address string
	server  *http.Server
	done    chan struct{}
}

// startRegistry starts it where all nodes are beside.
func startRegistry(list []*imagepack.Image) (*registry, error) {
	served := imagepack.NewRegistry("", "")
	for _, i := range list {
		if !slices.Contains(i.Names, imageutils.GetE2EImage(imageutils.Kitten)) {
			continue
		}
		within := *i
		within.Names = nil
		for _, name := range i.Names {
			within.Names = append(within.Names, strings.TrimPrefix(name, suiteRegistry+"/"))
		}
		if err := served.Push(&within); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(machine.HubAddress, "0"))
	if err != nil {
		return nil, err
	}
	r := &registry{address: l.Addr().String(), server: &http.Server{Handler: served, ReadHeaderTimeout: time.Minute}, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		_ = r.server.Serve(l) // until it is stopped
	}()
	return r, nil
}

func (r *registry) stop() {
	_ = r.server.Close() // whoever reads from it has ended
	<-r.done
}
