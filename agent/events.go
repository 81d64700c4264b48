package agent

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/rpc"
)

// maxEventText is what the servers take of an event's message.
const maxEventText = 1024

// newEvent makes an event about a pod.
func newEvent(pod *corev1.Pod, eventType, reason, message string, now time.Time) *corev1.Event {
	return eventOf(corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, eventType, reason, message, now)
}

// nodeEvent makes an event about the node itself. Which object that is the servers know.
func nodeEvent(node, eventType, reason, message string, now time.Time) *corev1.Event {
	return eventOf(corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node}, eventType, reason, message, now)
}

// eventOf makes an event. The servers name it, say who tells it, and count what is said again.
func eventOf(about corev1.ObjectReference, eventType, reason, message string, now time.Time) *corev1.Event {
	return &corev1.Event{
		InvolvedObject: about,
		Type:           eventType, Reason: reason, Message: model.CutText(message, maxEventText), // what a runtime answers is in it
		LastTimestamp: metav1.NewTime(now.UTC().Truncate(time.Second)),
	}
}

// fetchError keeps apart what is not there from what could not be asked for.
func fetchError(err error, resource, name string) error {
	if errors.Is(err, rpc.ErrNotFound) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return fmt.Errorf("fetch %s %s: %w", resource, name, err)
}
