package apiserver

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestCollectionsKeepToPreconditions: a precondition is about one object, so it lets a collection of others be.
func TestCollectionsKeepToPreconditions(t *testing.T) {
	s := share(t)
	ctx, ns, client := context.Background(), s.namespace(t), s.client(t)
	pods, maps := client.CoreV1().Pods(ns), client.CoreV1().ConfigMaps(ns)
	for _, name := range []string{"a", "b"} {
		if _, err := pods.Create(ctx, testPod(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": "these"}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Every namespace has a config map of its own.
	selected := metav1.ListOptions{LabelSelector: "of=these"}
	left := func() (int, int) {
		p, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := maps.List(ctx, selected)
		if err != nil {
			t.Fatal(err)
		}
		return len(p.Items), len(m.Items)
	}
	other, stale := types.UID("other"), "1"
	for name, p := range map[string]*metav1.Preconditions{"UID": {UID: &other}, "revision": {ResourceVersion: &stale}} {
		o := metav1.DeleteOptions{Preconditions: p}
		wantStatus(t, pods.DeleteCollection(ctx, o, metav1.ListOptions{}), 409, "")
		wantStatus(t, maps.DeleteCollection(ctx, o, selected), 409, "")
		if p, m := left(); p != 2 || m != 2 {
			t.Fatalf("by another's %s there are %d pods and %d config maps left of two each", name, p, m)
		}
	}
	// It is a right one for one of two: of the other nothing is done.
	one, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, pods.DeleteCollection(ctx, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &one.UID}}, metav1.ListOptions{}), 409, "")
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &one.UID}}, metav1.ListOptions{FieldSelector: "metadata.name=a"}); err != nil {
		t.Fatal(err)
	}
	if p, m := left(); p != 1 || m != 2 {
		t.Errorf("%d pods and %d config maps are left", p, m)
	}
}

// TestSelfLinksAreNotKept: whoever writes one, by whichever verb.
func TestSelfLinksAreNotKept(t *testing.T) {
	s := share(t)
	ctx, ns := context.Background(), s.namespace(t)
	maps := s.client(t).CoreV1().ConfigMaps(ns)
	const link = "/api/v1/somewhere"
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", SelfLink: link}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.SelfLink, made.Data = link, map[string]string{"k": "v"}
	updated, err := maps.Update(ctx, made, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patched, err := maps.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"selfLink":"`+link+`"},"data":{"k":"w"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := maps.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, o := range map[string]*corev1.ConfigMap{"updated": updated, "patched": patched, "kept": got} {
		if o.SelfLink != "" {
			t.Errorf("%s it has the link %s", what, o.SelfLink)
		}
	}
}
