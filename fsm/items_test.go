package fsm

import (
	"bytes"
	"strings"
	"testing"
)

// TestClaimsBecomeItems: by the rules up to version 25 a quota whose scope is the class of a volume's attributes bounds nothing,
// sums of claims wrap, and what no scope means is asked of quotas that have one. From the first entry of version 26 on it is as
// it should be, on servers that were there before as on those that begin with a snapshot.
func TestClaimsBecomeItems(t *testing.T) {
	s := newTranscriptBy(t, SinceItems-1)
	for _, line := range []string{
		"object persistentvolumeclaims one class=fast attributes=gold given=4E",
		"object persistentvolumeclaims two class=fast given=4E",
		"object persistentvolumeclaims three given=4E",
		"object resourcequotas gold hard=persistentvolumeclaims:1,requests.storage:1Gi attributes=In:gold",
		"object resourcequotas all hard=persistentvolumeclaims:9,requests.storage:300Ti,fast.storageclass.storage.k8s.io/requests.storage:300Ti",
		"object resourcequotas devices hard=gpu.deviceclass.resource.k8s.io/devices:1",
		"object resourcequotas bare hard=configmaps:0 scopes=BestEffort",
	} {
		s.line(line)
	}
	quota := func(name string) string {
		o, _ := s.view().Objects.Get(ResourceQuotas + "/default/" + name)
		return describeQuota(quotaIn(o))
	}
	says := func(when string, want map[string]string) {
		t.Helper()
		for name, want := range want {
			if got := quota(name); got != want {
				t.Errorf("%s %s says %s, want %s", when, name, got, want)
			}
		}
	}
	says("by the rules before", map[string]string{
		"gold": "persistentvolumeclaims 0/1, requests.storage 0/1Gi", "devices": "gpu.deviceclass.resource.k8s.io/devices ?/1",
		"all": "fast.storageclass.storage.k8s.io/requests.storage 7629394531250Mi/300Ti, persistentvolumeclaims 3/9, requests.storage 0/300Ti",
	})
	for line, want := range map[string]string{"object configmaps a": "403", "object persistentvolumeclaims more attributes=gold": "ok"} {
		if got := s.line(line); !strings.HasPrefix(got, want) {
			t.Errorf("by the rules before, %s: %s", line, got)
		}
	}
	s.line("delete-object persistentvolumeclaims more")
	s.version = SinceItems
	s.line("object configmaps b") // anything
	says("by the rules since", map[string]string{
		"gold": "persistentvolumeclaims 1/1, requests.storage 256Ti/1Gi", "devices": "gpu.deviceclass.resource.k8s.io/devices 0/1",
		"all": "fast.storageclass.storage.k8s.io/requests.storage 512Ti/300Ti, persistentvolumeclaims 3/9, requests.storage 768Ti/300Ti",
	})
	for line, want := range map[string]string{"object configmaps a": "ok", "object persistentvolumeclaims more attributes=gold": "403"} {
		if got := s.line(line); !strings.HasPrefix(got, want) {
			t.Errorf("by the rules since, %s: %s", line, got)
		}
	}
	restored := NewState()
	if err := restored.Restore(bytes.NewReader(snapshotOf(t, s.view()))); err != nil {
		t.Fatal(err)
	}
	compareViews(t, "a restored server", s.view(), restored.View())
}
