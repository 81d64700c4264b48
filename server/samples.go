package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/sample"
)

const (
	// samplesFresh is how long what another server said of a node is good: less than
	// the time between two samples.
	samplesFresh = 4 * time.Second
	// samplesWait bounds the question to another server. Who does not answer has none.
	samplesWait = 3 * time.Second
	// samplesAtOnce bounds the questions under way.
	samplesAtOnce = 4
	// samplesBytes bounds one answer to another server, samplesNodes one question.
	samplesBytes = 4 << 20
	samplesNodes = 4096
	// forgetSamples is how often the store is rid of nodes that are no more.
	forgetSamples = time.Minute
)

// samples is what this server knows of what nodes use. It is never replicated: a
// worker tells the server that holds its stream, and the others ask that one.
type samples struct {
	store  *sample.Store
	asking chan struct{} // a token for each gathering under way
}

func newSamples() *samples {
	return &samples{store: sample.NewStore(), asking: make(chan struct{}, samplesAtOnce)}
}

// WorkerSample implements rpc.WorkerHandler.
func (s *Server) WorkerSample(node string, said *rpc.Sample) {
	if !s.shares.takeSample(node) {
		s.drop("sample", node, "reason", "it tells what it uses too often")
		return
	}
	now := time.Now()
	age := time.Duration(said.AgeNano)
	if age < 0 || age > sample.MaxAge {
		s.drop("sample", node, "reason", "it was not taken lately", "age", age)
		return
	}
	if _, err := sample.Decode(said.Body); err != nil {
		s.drop("sample", node, "reason", err.Error())
		return
	}
	if !s.samples.store.Tell(node, slices.Clone(said.Body), now.Add(-age)) {
		s.drop("sample", node, "reason", "this server holds as many as it may", "bytes", len(said.Body))
	}
}

// Samples implements rpc.ServerHandler.
func (h handler) Samples(_ context.Context, r *rpc.SamplesRequest) (*rpc.SamplesResponse, error) {
	now := time.Now()
	out, size := new(rpc.SamplesResponse), 0
	h.samples.store.Told(r.Nodes[:min(len(r.Nodes), samplesNodes)], now, func(raw sample.Raw) bool {
		if size > 0 && size+len(raw.Body) > samplesBytes {
			out.More = true
			return false
		}
		size += len(raw.Body)
		out.Samples = append(out.Samples, rpc.NodeSample{
			Node: raw.Node, Sample: rpc.Sample{AgeNano: int64(max(now.Sub(raw.At), 0)), Body: raw.Body},
		})
		return true
	})
	return out, nil
}

// usage shows the API what nodes use (apiserver.Usage).
type usage struct{ *Server }

// Of implements apiserver.Usage. Nodes of which nothing is known have no sample.
func (u usage) Of(ctx context.Context, nodes []string) (apiserver.Samples, error) {
	if err := u.gatherSamples(ctx, nodes); err != nil {
		return nil, err
	}
	return u.samples, nil
}

// Sample implements apiserver.Samples.
func (s *samples) Sample(node string) (sample.Taken, bool) { return s.store.Get(node, time.Now()) }

// gatherSamples asks the other servers for what this one was not told.
func (s *Server) gatherSamples(ctx context.Context, nodes []string) error {
	missing := func() []string {
		now := time.Now()
		return s.samples.store.Missing(nodes, now, now.Add(-samplesFresh))
	}
	if len(missing()) == 0 {
		return nil
	}
	select {
	case s.samples.asking <- struct{}{}:
		defer func() { <-s.samples.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	want := missing() // others may have asked meanwhile
	if len(want) == 0 {
		return nil
	}
	slices.Sort(want)
	ctx, cancel := context.WithTimeout(ctx, samplesWait)
	defer cancel()
	asked := time.Now()
	var (
		mu      sync.Mutex
		newest  = map[string]sample.Raw{}
		askings guard.Group
	)
	for _, addr := range s.mayHoldWorkers() {
		askings.Go(func() {
			err := s.askSamples(ctx, addr, want, func(raw sample.Raw) {
				mu.Lock()
				defer mu.Unlock()
				if raw.At.After(newest[raw.Node].At) {
					newest[raw.Node] = raw
				}
			})
			if err != nil {
				s.log.Debug("another server does not say what nodes use", "address", addr, "error", err)
			}
		})
	}
	askings.Wait()
	for _, node := range want {
		raw := newest[node]
		s.samples.store.Learn(node, raw.Body, raw.At, asked)
	}
	return nil
}

// askSamples asks one server, as often as it leaves something out.
func (s *Server) askSamples(ctx context.Context, addr string, want []string, take func(sample.Raw)) error {
	for len(want) > 0 {
		part := want[:min(len(want), samplesNodes)]
		resp, err := s.peers.Samples(ctx, addr, part)
		if err != nil {
			return err
		}
		now, last := time.Now(), ""
		for i := range resp.Samples {
			one := &resp.Samples[i]
			age := time.Duration(one.Sample.AgeNano)
			if _, asked := slices.BinarySearch(part, one.Node); asked && one.Node > last && age >= 0 && age <= sample.MaxAge {
				take(sample.Raw{Node: one.Node, At: now.Add(-age), Body: one.Sample.Body})
			}
			last = max(last, one.Node)
		}
		if !resp.More || last == "" {
			want = want[len(part):]
			continue
		}
		at, _ := slices.BinarySearch(want, last+"\x00")
		want = want[max(at, 1):]
	}
	return nil
}

// samplesLoop forgets nodes that are no more.
func (s *Server) samplesLoop(ctx context.Context) {
	guard.Every(ctx, forgetSamples, func(now time.Time) {
		view := s.state.View()
		s.samples.store.Keep(func(node string) bool {
			_, there := view.Nodes.Get(node)
			return there
		}, now)
	})
}
