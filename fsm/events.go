package fsm

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Events are derived here from what was done; they cost no entry of their own.

const eventSource = "berth"

// scheduled records what the scheduler of a profile did to a pod; it is said in
// the profile's name, as by kube-scheduler.
func (tx *Tx) scheduled(profile string, pod *corev1.Pod, eventType, reason, message string) {
	tx.event(profile, pod.Namespace, eventName(pod.Name, uint64(tx.view.Revision()+1)), podInvolved(pod), eventType, reason, message)
}

// eventName is NAME.0123456789abcdef, as Kubernetes names events.
func eventName(about string, n uint64) string {
	b := make([]byte, 0, 96) // of a fixed size, so that only the name is allocated
	return string(appendHex(append(append(b, about...), '.'), n))
}

// appendHex appends all sixteen digits.
func appendHex(b []byte, n uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[n>>shift&15])
	}
	return b
}

func podInvolved(pod *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
}

// scheduledAgain is scheduled for what happens again and again: one event
// counts the repetitions.
func (tx *Tx) scheduledAgain(profile string, pod *corev1.Pod, eventType, reason, message string) {
	tx.repeatedEvent(profile, pod.Namespace, podInvolved(pod), eventType, reason, message)
}

// onceEvent records something about an object, unless it is on record.
func (tx *Tx) onceEvent(about corev1.ObjectReference, eventType, reason, message string) {
	name := repeatedName(about, reason)
	if _, ok := tx.view.Events.Get(about.Namespace + "/" + name); !ok {
		tx.event(eventSource, about.Namespace, name, about, eventType, reason, message)
	}
}

func (tx *Tx) repeatedEvent(component, namespace string, involved corev1.ObjectReference, eventType, reason, message string) {
	name := repeatedName(involved, reason)
	key := namespace + "/" + name
	old, ok := tx.view.Events.Get(key)
	if !ok {
		tx.event(component, namespace, name, involved, eventType, reason, message)
		return
	}
	e := *old
	e.Count++
	e.Message = message
	e.LastTimestamp = tx.now()
	tx.putEvent(&e, max(1, int(*tx.view.SchedulerConfig().Spec.EventLimit)))
}

func repeatedName(about corev1.ObjectReference, reason string) string {
	sum := sha256.Sum256([]byte(string(about.UID) + "/" + reason))
	return eventName(about.Name, binary.BigEndian.Uint64(sum[:]))
}

func (tx *Tx) nodeEvent(node *corev1.Node, eventType, reason, message string) {
	tx.event(eventSource, metav1.NamespaceDefault, eventName(node.Name, uint64(tx.view.Revision()+1)), corev1.ObjectReference{
		Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID,
	}, eventType, reason, message)
}

// event records what a component did.
func (tx *Tx) event(component, namespace, name string, about corev1.ObjectReference, eventType, reason, message string) {
	limit := int(*tx.view.SchedulerConfig().Spec.EventLimit)
	if limit == 0 {
		return
	}
	now := tx.now()
	tx.putEvent(&corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: name, UID: tx.newUID(), CreationTimestamp: now},
		InvolvedObject:      about,
		Type:                eventType,
		Reason:              reason,
		Message:             message,
		Source:              corev1.EventSource{Component: component},
		ReportingController: component,
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
	}, limit)
}

// newUID makes the UID of an object that Apply itself creates: from the entry's
// time and the revision, so that every server makes the same one.
func (tx *Tx) newUID() types.UID {
	var b [24]byte
	binary.BigEndian.PutUint64(b[:], uint64(tx.view.TimeUnixNano()))
	binary.BigEndian.PutUint64(b[8:], uint64(tx.view.Revision()+1))
	binary.BigEndian.PutUint64(b[16:], tx.view.Index())
	sum := sha256.Sum256(b[:])
	var id uuid.UUID
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x80 // version 8: made by a rule of our own
	id[8] = id[8]&0x3f | 0x80
	return types.UID(id.String())
}
