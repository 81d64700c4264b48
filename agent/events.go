package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
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
	return eventOf(corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		pod.Spec.NodeName, eventType, reason, message, now)
}

// nodeEvent makes an event about the node itself. Which object that is the servers know.
func nodeEvent(node, eventType, reason, message string, now time.Time) *corev1.Event {
	return eventOf(corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node}, node, eventType, reason, message, now)
}

// eventOf makes an event. The same thing said of the same object has the same name, so that the servers count repetitions.
func eventOf(about corev1.ObjectReference, node, eventType, reason, message string, now time.Time) *corev1.Event {
	sum := sha256.Sum256([]byte(string(about.UID) + "\x00" + reason + "\x00" + message))
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault), Name: fmt.Sprintf("%s.%s", about.Name, hex.EncodeToString(sum[:8]))},
		InvolvedObject: about,
		Type:           eventType, Reason: reason, Message: model.CutText(message, maxEventText), // what a runtime answers is in it
		Source:              corev1.EventSource{Component: "berth-worker", Host: node},
		ReportingController: "berth-worker", ReportingInstance: node,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
}

// fetchError keeps apart what is not there from what could not be asked for.
func fetchError(err error, resource, name string) error {
	if errors.Is(err, rpc.ErrNotFound) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return fmt.Errorf("fetch %s %s: %w", resource, name, err)
}
