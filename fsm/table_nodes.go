package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

var nodeTable = protoTable("nodes", indexNode)

// indexNode keeps what the nodes offer in the form that decisions need.
func indexNode(v *live, name string, _, new *corev1.Node, _, hasNew bool) {
	t := v.cache.topology
	if !hasNew {
		v.offers.Delete(name)
		if t != nil {
			t.RemoveNode(name)
		}
		return
	}
	if t != nil {
		t.PutNode(new)
	}
	offer := model.Allocatable(new)
	v.offers.Set(name, &offer)
}

// offer is what a node that is there has for pods.
func (v *View) offer(node string) *model.Resources {
	o, _ := v.offers.Get(node)
	return o
}

// nodeMark remembers the last revision at which something happened on a node
// that could help a waiting pod: a decision "no node fits" made on an older
// state is not believed for this node (QU8: events in flight).
type nodeMark struct {
	Revision int64 `msgpack:"revision"`
}

var markTable = &tableDef[*nodeMark]{
	Name:    "nodemarks",
	Marshal: func(m *nodeMark) ([]byte, error) { return store.Marshal(m) },
	Unmarshal: func(b []byte) (*nodeMark, error) {
		m := new(nodeMark)
		return m, store.Unmarshal(b, m)
	},
	Index: func(v *live, node string, old, new *nodeMark, hadOld, hasNew bool) {
		if hadOld {
			v.marksByRevision.Delete(markKey(old.Revision, node))
		}
		if hasNew {
			v.marksByRevision.Set(markKey(new.Revision, node), node)
		}
	},
}

func markKey(revision int64, node string) string { return revisionKey(revision) + node }
