package fsm

import (
	"errors"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// What the queue says is in package queue; here is how its rows are kept.

// QueueEntry is a pod that waits for a place.
type QueueEntry = queue.Entry

// Diagnosis is the outcome of an attempt that found no place.
type Diagnosis = queue.Diagnosis

// ReasonCount is how many nodes gave a reason.
type ReasonCount = queue.ReasonCount

// SetAside is what went wrong when the scheduler decided about a pod.
type SetAside = queue.SetAside

var queueTable = &tableDef[*QueueEntry]{
	Name:      "queueentries",
	Canonical: codec.Canonical[*QueueEntry](codec.Msgpack),
	Marshal:   packRow[QueueEntry],
	Unmarshal: unpackRow[QueueEntry],
	Revise:    func(e *QueueEntry, revision int64) { e.Revision = revision },
	Size:      (*QueueEntry).Bytes,
	Bytes:     func(_ *live, e *QueueEntry) int { return entryTakes(e) },
	Complete: func(v *live, key string, e *QueueEntry) error {
		e.Diagnosis = v.cache.diagnosis(e.Diagnosis)
		class, err := v.classOfWaiting(key)
		e.SetClass(class)
		return err
	},
	Index: func(v *live, key string, old, now *QueueEntry, _, hasNow bool) {
		if hasNow {
			now.SetPromised(v.promisedTo(key))
		}
		v.queue.Put(old, now)
		indexQueued(v, key, old, now)
	},
}

// promisedTo is what a waiting pod is promised.
func (v *View) promisedTo(key string) queue.Place {
	n, ok := v.Nominations.Get(key)
	if !ok {
		return queue.Place{}
	}
	return queue.Place{Node: n.Node, Reserved: n.Reserved}
}

// classOfWaiting is the class of the pod that a restored row is about.
func (v *live) classOfWaiting(key string) (*model.Class, error) {
	pod, ok := v.Pods.Get(key)
	if !ok {
		return nil, errors.New("its pod is not in the snapshot")
	}
	return v.compile(pod), nil
}

var markTable = &tableDef[*queue.NodeMark]{
	Name:      "nodemarks",
	Bytes:     func(*live, *queue.NodeMark) int { return smallBytes },
	Marshal:   packRow[queue.NodeMark],
	Unmarshal: unpackRow[queue.NodeMark],
	Index:     func(v *live, node string, old, now *queue.NodeMark, _, _ bool) { v.queue.PutNodeMark(node, old, now) },
}

var podMarkTable = &tableDef[*queue.PodMark]{
	Name:      "podmarks",
	Canonical: codec.Canonical[*queue.PodMark](codec.Msgpack),
	Bytes:     func(_ *live, m *queue.PodMark) int { return smallBytes + textBytes(m.Labels) },
	Marshal:   packRow[queue.PodMark],
	Unmarshal: unpackRow[queue.PodMark],
	Index:     func(v *live, key string, old, now *queue.PodMark, _, _ bool) { v.queue.PutPodMark(key, old, now) },
}

var pendingTable = &tableDef[*queue.Pending]{
	Name:      "pending",
	Canonical: codec.Canonical[*queue.Pending](codec.Msgpack),
	Bytes:     func(_ *live, p *queue.Pending) int { return smallBytes + len(p.From) },
	Marshal:   packRow[queue.Pending],
	Unmarshal: unpackRow[queue.Pending],
}
