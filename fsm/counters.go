package fsm

import (
	"reflect"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// told is one thing that the counters of rules between pods were told. The entry
// under way keeps what it told them, so that a panic can be taken back without
// counting all pods anew.
type told struct {
	// sign is +1 for a pod or nomination that came, -1 for one that went; 0 where a
	// node or namespace changed.
	sign     int32
	node     string
	class    *model.Class
	leaving  bool
	nominal  bool
	priority int32 // of a nomination

	wasNode, isNode *corev1.Node // nil: not there

	namespace       string
	wasLabels       map[string]string
	isLabels        map[string]string
	namespaceIsGone bool
}

func (c *told) tell(t *model.Topology) {
	switch {
	case c.nominal && c.sign > 0:
		t.Nominate(c.node, c.class, c.priority)
	case c.nominal:
		t.Unnominate(c.node, c.class, c.priority)
	case c.sign > 0:
		t.AddPod(c.node, c.class, c.leaving)
	case c.sign < 0:
		t.RemovePod(c.node, c.class, c.leaving)
	case c.isNode != nil:
		t.PutNode(c.isNode)
	case c.wasNode != nil:
		t.RemoveNode(c.wasNode.Name)
	case c.namespaceIsGone:
		t.RemoveNamespace(c.namespace)
	default:
		t.PutNamespace(c.namespace, c.isLabels)
	}
}

// takeBack is the inverse of tell.
func (c *told) takeBack(t *model.Topology) {
	back := *c
	back.sign = -c.sign
	back.wasNode, back.isNode = c.isNode, c.wasNode
	back.wasLabels, back.isLabels, back.namespaceIsGone = c.isLabels, c.wasLabels, false
	back.tell(t)
}

// counters are those of the rules between pods, with what the entry under way
// told them. In a fork there are none until they are needed.
type counters struct {
	topology *model.Topology
	told     []told
}

// tell tells the counters something, if there are any.
func (c *counters) tell(what told) {
	if c.topology == nil {
		return
	}
	what.tell(c.topology)
	c.told = append(c.told, what)
}

// backTo takes back all that they were told but so much.
func (c *counters) backTo(told int) {
	for i := len(c.told) - 1; i >= told; i-- {
		c.told[i].takeBack(c.topology)
	}
	clear(c.told[told:])
	c.told = c.told[:told]
}

// after are the counters after a panic, as they were when they had been told so
// much; or none, if they cannot be brought back to that.
func (c *counters) after(told int) (are *counters) {
	defer func() {
		if recover() != nil { // nobody would be there to undo this one
			are = new(counters)
		}
	}()
	c.backTo(told)
	return c
}

// peek asks the counters as they would be, were they told something more.
func (c *counters) peek(more []told, f func()) {
	before := len(c.told)
	for _, what := range more {
		c.tell(what)
	}
	f()
	c.backTo(before)
}

// maxSpareTold bounds how much memory an exceptional entry leaves behind.
const maxSpareTold = 1 << 12

// settle forgets what an entry told them.
func (c *counters) settle() {
	clear(c.told)
	if c.told = c.told[:0]; cap(c.told) > maxSpareTold {
		c.told = nil
	}
}

// counting says, of a panic while its stack stands, whether it came out of the
// counters themselves: then they may be half changed.
func counting() bool {
	var pcs [64]uintptr
	for skip := 0; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var f runtime.Frame
			f, more = frames.Next()
			if name, ok := strings.CutPrefix(f.Function, countersPackage); ok &&
				(strings.HasPrefix(name, ".(*Topology).") || strings.HasPrefix(name, ".(*Judge).")) {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

var countersPackage = reflect.TypeFor[model.Topology]().PkgPath()
