package cri

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

func dockerConfig(text string) *corev1.Secret {
	return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(text)}}
}

// Images come from a registry, with the credentials that are its own, and are then here.
func TestPull(t *testing.T) {
	h := open(t)
	registry := imagepack.NewRegistry("ada", "secret")
	server := httptest.NewServer(registry)
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	image := imagepack.Image{Names: []string{"team/web:1"}, User: "77", Cmd: []string{"x"}, Files: []imagepack.File{{Path: "x", Mode: 0o755, Data: []byte(t.Name())}}}
	if err := registry.Push(&image); err != nil {
		t.Fatal(err)
	}
	name, ctx := host+"/team/web:1", t.Context()
	if ref, err := h.rt.FindImage(ctx, name); ref != "" || err != nil {
		t.Fatalf("found %q, %v", ref, err)
	}
	if _, err := h.rt.PullImage(ctx, name, nil, atOnce); err == nil {
		t.Error("it was pulled without credentials")
	}
	right := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, "http://"+host+"/v1/", base64.StdEncoding.EncodeToString([]byte("ada:secret")))
	wrong := fmt.Sprintf(`{"auths":{%q:{"username":"bob","password":"x"},"other.example":{"username":"ada","password":"secret"}}}`, host+"/team")
	if _, err := h.rt.PullImage(ctx, name, []*corev1.Secret{dockerConfig(wrong)}, atOnce); err == nil {
		t.Error("it was pulled with another registry's credentials")
	}
	if _, err := h.rt.PullImage(ctx, name, []*corev1.Secret{dockerConfig(`{`)}, atOnce); err == nil || strings.Contains(err.Error(), "{") {
		t.Errorf("a broken secret: %v", err)
	}
	pulled, err := h.rt.PullImage(ctx, name, []*corev1.Secret{dockerConfig(wrong), dockerConfig(right)}, atOnce)
	if err != nil || pulled.Ref == "" || pulled.SizeBytes == 0 {
		t.Fatalf("%+v, %v", pulled, err)
	}
	if ref, err := h.rt.FindImage(ctx, name); ref != pulled.Ref || err != nil {
		t.Errorf("found %q, %v", ref, err)
	}
	if u, err := h.rt.userOf(ctx, pulled.Ref); err != nil || u.uid == nil || *u.uid != 77 {
		t.Errorf("it runs as %+v, %v", u, err)
	}
	images, err := h.rt.Images()
	if err != nil || !slices.ContainsFunc(images, func(i runtime.Image) bool { return slices.Contains(i.Names, name) && i.SizeBytes > 0 }) {
		t.Errorf("images %+v, %v", images, err)
	}
	if _, err := h.rt.PullImage(ctx, host+"/team/none:1", []*corev1.Secret{dockerConfig(right)}, atOnce); err == nil {
		t.Error("an image was pulled that is not there")
	}
	var ne *runtime.ImageNameError
	for _, bad := range []string{"Web:1", "a b", "", "x@sha256:12"} {
		if _, err := h.rt.FindImage(ctx, bad); !errors.As(err, &ne) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// Many at once, each in its turn.
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := h.rt.PullImage(ctx, name, []*corev1.Secret{dockerConfig(right)}, atOnce); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// atOnce lets a pull begin.
func atOnce() error { return nil }

func TestCredentials(t *testing.T) {
	secrets := []*corev1.Secret{
		dockerConfig(`{"auths":{"https://index.docker.io/v1/":{"username":"hub"},"*.example.com":{"username":"any"},"a.example.com/team":{"username":"team"},
			"a.example.com/tea":{"username":"tea"},"a.example.com:5000":{"username":"port"}}}`),
		{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"a.example.com":{"username":"old"}}`)}},
		{Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"x": []byte("y")}},
	}
	for image, want := range map[string]string{
		"docker.io/library/web:1":     "hub",
		"a.example.com/team/web:1":    "team old any",
		"a.example.com/team:1":        "team old any",
		"a.example.com/teams/web:1":   "old any",
		"b.example.com/web:1":         "any",
		"a.b.example.com/web:1":       "",
		"a.example.com:5000/web:1":    "port",
		"example.com/web:1":           "",
		"other.org/a.example.com/x:1": "",
	} {
		found, err := credentials(image, secrets)
		var got []string
		for _, a := range found {
			got = append(got, a.auth.Username)
		}
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: %v, %v; want %s", image, got, err, want)
		}
	}
	bad := dockerConfig(`{"auths":{"docker.io":{"auth":"bm90aGluZw=="}}}`)
	if _, err := credentials("docker.io/library/web:1", []*corev1.Secret{bad}); err == nil || strings.Contains(err.Error(), "bm90") {
		t.Errorf("auth without a password: %v", err)
	}
}
