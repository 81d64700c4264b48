package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// registers are config maps that several users read and write through all servers.
// One is used for a while, and then another: so the order of its operations can be
// found.
type registers struct {
	mu      sync.Mutex
	history []porcupine.Operation
	began   int
	open    map[int]porcupine.Operation // not answered yet
}

// registerUse is for how long one register is used.
const registerUse = 30 * time.Second

// operation reads, writes, or swaps: writes if the value is still the one seen.
type operation struct {
	key   string
	kind  string
	value string
	seen  string
}

type answer struct {
	value   string // of a read
	refused bool   // of a swap: the value was another one
	none    bool   // nothing was done, for certain
	unknown bool
}

var registerModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) (out [][]porcupine.Operation) {
		at := map[string]int{}
		for _, o := range history {
			key := o.Input.(operation).key
			i, ok := at[key]
			if !ok {
				i, at[key], out = len(out), len(out), append(out, nil)
			}
			out[i] = append(out[i], o)
		}
		return out
	},
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		was, in, out := state.(string), input.(operation), output.(answer)
		switch {
		case out.none:
			return []any{was}
		case in.kind == "read":
			if !out.unknown && out.value != was {
				return nil
			}
			return []any{was}
		case in.kind == "write" && out.unknown:
			return []any{was, in.value}
		case in.kind == "write":
			return []any{in.value}
		case out.refused:
			if in.seen == was {
				return nil
			}
			return []any{was}
		case out.unknown && in.seen == was:
			return []any{was, in.value}
		case out.unknown:
			return []any{was}
		case in.seen != was:
			return nil
		}
		return []any{in.value}
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

func (r *registers) begin(client int, in operation) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began++
	if r.open == nil {
		r.open = map[int]porcupine.Operation{}
	}
	r.open[r.began] = porcupine.Operation{ClientId: client, Input: in, Call: int64(time.Since(begin))}
	return r.began
}

// end notes an answer. What may still happen has no end.
func (r *registers) end(id int, out answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.open[id]
	o.Output, o.Return = out, int64(time.Since(begin))
	if out.unknown && o.Input.(operation).kind != "read" {
		o.Return = int64(1) << 62
	}
	delete(r.open, id)
	if out.unknown && o.Input.(operation).kind == "read" || out.none {
		return // they say nothing
	}
	r.history = append(r.history, o)
}

// check says of every register whether one order explains all answers. Those that were
// used when, or after, somebody restored a snapshot, a while into the world, are left out.
func (r *registers) check(forgotten time.Duration) error {
	r.mu.Lock()
	history := slices.Clone(r.history)
	for _, o := range r.open {
		if o.Input.(operation).kind != "read" {
			o.Output, o.Return = answer{unknown: true}, int64(1)<<62
			history = append(history, o)
		}
	}
	r.mu.Unlock()
	if forgotten > 0 {
		history = slices.DeleteFunc(history, func(o porcupine.Operation) bool {
			n, err := strconv.Atoi(strings.TrimPrefix(o.Input.(operation).key, "register-"))
			return err != nil || time.Duration(n+2)*registerUse > forgotten // its last user may have been late
		})
	}
	slices.SortStableFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var errs []error
	for _, part := range registerModel.Partition(history) {
		if !porcupine.CheckOperations(registerModel.ToModel(), part) {
			text := ""
			for _, o := range part {
				text += fmt.Sprintf("\n  %12.6f to %12.6f  client %d: %+v -> %+v", time.Duration(o.Call).Seconds(), time.Duration(o.Return).Seconds(), o.ClientId, o.Input, o.Output)
			}
			errs = append(errs, fmt.Errorf("no order explains what register %s answered:%s", part[0].Input.(operation).key, text))
		}
	}
	return errors.Join(errs...)
}

// known says what an error of a write means.
func known(err error) answer {
	switch {
	case err == nil:
		return answer{}
	case apierrors.IsConflict(err):
		return answer{refused: true}
	case apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), apierrors.IsNotFound(err):
		return answer{none: true}
	}
	return answer{unknown: true}
}

// useRegisters reads and writes until ctx ends.
func (u *user) useRegisters(ctx context.Context, r *registers, client int) {
	n, made := 0, ""
	u.every(ctx, 300*time.Millisecond, func() {
		pause(ctx, time.Duration(u.rand.IntN(300))*time.Millisecond)
		key := registerNow()
		if key != made {
			u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				_, err := c.CoreV1().ConfigMaps(space).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key}}, metav1.CreateOptions{})
				return err
			})
			made = key
		}
		n++
		in := operation{key: key, kind: []string{"read", "write", "swap", "swap"}[u.rand.IntN(4)], value: fmt.Sprintf("%s-%d", u.name, n)}
		u.operate(ctx, r, client, in)
	})
}

// readFirst reads at every server as soon as it has been elected: what was acknowledged before, it has to know before
// it answers.
func (u *user) readFirst(ctx context.Context, r *registers, client int) {
	led, asks := make([]bool, len(u.clients)), make([]atomic.Bool, len(u.clients))
	poll := u.world.config.Pace.poll()
	for n := 0; ctx.Err() == nil; n++ {
		// Who is elected does not say yet that it leads; who is being killed says so still.
		nobody := !slices.ContainsFunc(u.world.servers, func(m *machine) bool { return m.leads() && !m.dying })
		for i, m := range u.world.servers {
			elected := m.leads() || nobody && m.server != nil && !m.dying && m.server.Role() == "leader"
			// Now and then, so that a connection is there when it is needed; not many at a time, or it takes long to find their order.
			if elected && !led[i] || n%1000 == 0 && !asks[i].Swap(true) {
				go func() {
					u.read(ctx, r, client, registerNow(), u.clients[i])
					asks[i].Store(false)
				}()
			}
			led[i] = elected
		}
		pause(ctx, poll)
	}
}

// read reads a register, of one server; nil: it has not told.
func (u *user) read(ctx context.Context, r *registers, client int, key string, c *kubernetes.Clientset) *corev1.ConfigMap {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id := r.begin(client, operation{key: key, kind: "read"})
	have, err := c.CoreV1().ConfigMaps(space).Get(ctx, key, metav1.GetOptions{})
	if err != nil {
		r.end(id, answer{unknown: true})
		return nil
	}
	r.end(id, answer{value: have.Data["value"]})
	return have
}

// registerNow is the register that is used now.
func registerNow() string { return fmt.Sprintf("register-%d", int(time.Since(begin)/registerUse)) }

func (u *user) operate(ctx context.Context, r *registers, client int, in operation) {
	if ctx.Err() != nil {
		return
	}
	var have *corev1.ConfigMap
	if in.kind != "write" {
		if have = u.read(ctx, r, client, in.key, u.any()); have == nil {
			return
		}
	}
	if in.kind == "read" {
		return
	}
	next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: in.key}, Data: map[string]string{"value": in.value}}
	if in.kind == "swap" {
		next.ResourceVersion, in.seen = have.ResourceVersion, have.Data["value"]
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at := u.rand.IntN(len(u.clients))
	id := r.begin(client, in)
	// Once: what is tried again may be refused because it was done.
	err := u.clients[at].CoreV1().RESTClient().Put().Namespace(space).Resource("configmaps").Name(in.key).MaxRetries(0).Body(next).Do(ctx).Error()
	r.end(id, known(err))
	if err == nil {
		u.world.acknowledged(u.world.servers[at])
	}
}
