package agent

import (
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

// newEvent makes an event about a pod. The same thing said of the same pod has
// the same name, so that the servers count repetitions.
func newEvent(pod *corev1.Pod, eventType, reason, message string, now time.Time) *corev1.Event {
	sum := sha256.Sum256([]byte(string(pod.UID) + "\x00" + reason + "\x00" + message))
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: fmt.Sprintf("%s.%s", pod.Name, hex.EncodeToString(sum[:8]))},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		},
		Type: eventType, Reason: reason, Message: model.CutText(message, maxEventText), // what a runtime answers is in it
		Source:              corev1.EventSource{Component: "berth-worker", Host: pod.Spec.NodeName},
		ReportingController: "berth-worker", ReportingInstance: pod.Spec.NodeName,
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
