package cri

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// amnesiac is a stub that has lost its containers, and cannot say of one of them what has become of it.
type amnesiac struct{ stub }

func (*amnesiac) ContainerStatus(_ context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	if req.ContainerId == "damaged" {
		return nil, status.Error(codes.Unknown, "its metadata cannot be read")
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

// What cannot be looked at hides neither the ends of others nor that their sandboxes are gone.
func TestOneThatCannotBeLookedAt(t *testing.T) {
	s := &amnesiac{}
	r, _ := openFor(t, s, s, nil)
	r.cancel() // nobody else looks
	r.loops.Wait()
	var told []types.UID
	r.notify = func(ev runtime.Event) { told = append(told, ev.Pod) }
	for _, id := range []string{"a", "b", "c", "damaged", "e", "f", "g"} {
		r.running[runtime.ID{Pod: types.UID(id), Container: "c"}] = running{ref: id}
	}
	r.sandboxes["box"] = sandbox{id: "box"}
	if err := r.compare(t.Context()); err == nil {
		t.Error("nothing is told of the one that is damaged")
	}
	for _, want := range []types.UID{"a", "b", "c", "e", "f", "g", "box"} {
		if !slices.Contains(told, want) {
			t.Errorf("%s is not told; told is %v", want, told)
		}
	}
}
