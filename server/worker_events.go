package server

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// Bounds of a worker's event. Texts are as long as the API takes them, and are
// cut; what is larger as a whole is no event.
const (
	maxEventBytes   = 16 << 10
	maxEventReason  = 128
	maxEventMessage = 1024
	maxEventPath    = 256
	// eventAge is how old a worker may say that an event is: it may have been
	// alone for so long.
	eventAge = time.Hour
	// nodeAgent is who tells a worker's events: by that name tools look for what a node's agent says.
	nodeAgent = "kubelet"
)

// reportedEvents turns a worker's events into proposals. One that has happened
// before counts up. Only what is said of the worker's own pods and node is taken,
// and only what an event says: its name, its place and who tells it are made here,
// so that no worker overwrites another's.
func (s *Server) reportedEvents(node string, raw [][]byte) []fsm.Proposal {
	view, now := s.state.View(), time.Now()
	var ps []fsm.Proposal
	dropped := 0
	for _, b := range raw {
		e := workerEvent(view, node, b, now)
		if e == nil || !s.shares.takeEvent(node) {
			dropped++
			continue
		}
		old, again := view.Events.Get(e.Namespace + "/" + e.Name)
		if again {
			e.UID, e.CreationTimestamp = old.UID, old.CreationTimestamp
			e.FirstTimestamp, e.Count = old.FirstTimestamp, old.Count+1
		} else {
			e.UID, e.CreationTimestamp = uuid.NewUUID(), e.LastTimestamp
		}
		ps = append(ps, fsm.Proposal{
			User: workerUser(node), Groups: workerGroups,
			Command: &fsm.PutEvent{Event: fsm.EventWire{Object: e}, Create: !again},
		})
	}
	if dropped > 0 {
		s.metrics.workerDropped.WithLabelValues("event").Add(float64(dropped))
		s.log.Debug("events of a worker were not taken", "node", node, "events", dropped)
	}
	return ps
}

// workerEvent is what a worker may tell of what it says; nil if nothing.
func workerEvent(view *fsm.View, node string, raw []byte, now time.Time) *corev1.Event {
	said := new(corev1.Event)
	if len(raw) > maxEventBytes || codec.UnmarshalForeign(raw, said) != nil {
		return nil
	}
	about := corev1.ObjectReference{APIVersion: "v1", FieldPath: model.CutText(said.InvolvedObject.FieldPath, maxEventPath)}
	namespace := metav1.NamespaceDefault
	switch said.InvolvedObject.Kind {
	case "Pod":
		pod, ok := view.Pods.Get(fsm.PodKey(said.InvolvedObject.Namespace, said.InvolvedObject.Name))
		// What is told of a static pod names it as its mirror does, where kubectl looks for it.
		mirrors := ok && pod.Annotations[corev1.MirrorPodAnnotationKey] == string(said.InvolvedObject.UID)
		if !ok || pod.UID != said.InvolvedObject.UID && !mirrors || pod.Spec.NodeName != node {
			return nil
		}
		namespace = pod.Namespace
		about.Kind, about.Namespace, about.Name, about.UID = "Pod", pod.Namespace, pod.Name, said.InvolvedObject.UID
	case "Node":
		n, ok := view.Nodes.Get(node)
		if !ok || said.InvolvedObject.Name != node {
			return nil
		}
		about.Kind, about.Name, about.UID = "Node", n.Name, n.UID
	default:
		return nil
	}
	e := &corev1.Event{
		InvolvedObject: about, Type: corev1.EventTypeNormal, Count: 1,
		Reason: model.CutText(said.Reason, maxEventReason), Message: model.CutText(said.Message, maxEventMessage),
		Source:              corev1.EventSource{Component: nodeAgent, Host: node},
		ReportingController: nodeAgent, ReportingInstance: node,
	}
	if said.Type == corev1.EventTypeWarning {
		e.Type = said.Type
	}
	at := said.LastTimestamp.Time
	if at.After(now) || at.Before(now.Add(-eventAge)) {
		at = now
	}
	e.LastTimestamp = metav1.NewTime(at.UTC().Truncate(time.Second))
	e.FirstTimestamp = e.LastTimestamp
	// The same thing said of the same object has the same name, and counts up.
	sum := sha256.Sum256([]byte(string(about.UID) + "\x00" + e.Reason + "\x00" + e.Message))
	e.Namespace, e.Name = namespace, fmt.Sprintf("%s.%s", about.Name, hex.EncodeToString(sum[:8]))
	return e
}
