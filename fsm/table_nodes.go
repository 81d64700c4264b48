package fsm

import (
	"encoding/binary"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

var nodeTable = protoTable("nodes", indexNode)

// indexNode keeps what the nodes offer in the form that decisions need.
func indexNode(v *View, name string, _, new *corev1.Node, _, hasNew bool) {
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
	name:    "nodemarks",
	marshal: func(m *nodeMark) ([]byte, error) { return marshal(m) },
	unmarshal: func(b []byte) (*nodeMark, error) {
		m := new(nodeMark)
		return m, unmarshal(b, m)
	},
	index: func(v *View, node string, old, new *nodeMark, hadOld, hasNew bool) {
		if hadOld {
			v.marksByRevision.Delete(markKey(old.Revision, node))
		}
		if hasNew {
			v.marksByRevision.Set(markKey(new.Revision, node), node)
		}
	},
}

func markKey(revision int64, node string) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(revision))) + node
}
