package apiserver

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/apiserver/audittrail"
)

// TestTheTrailAndTheLogAgree: who did it stands in the account of a request as in the command that
// the request became.
func TestTheTrailAndTheLogAgree(t *testing.T) {
	d := newDouble(t)
	file := filepath.Join(t.TempDir(), "audit.log")
	s := start(t, d, func(c *Config) {
		c.Audit = audittrail.Config{MaxEventBytes: 100 << 10, Log: audittrail.Log{Path: file, MaxMebibytes: 2}}
	})
	robot := s.anonymous()
	robot.BearerToken = "secret-of-robot"
	as := s.config(t, "root", "system:masters")
	as.Impersonate = restclient.ImpersonationConfig{UserName: "ann", Groups: []string{"system:masters"}}
	before := len(d.proposers())
	for i, config := range []*restclient.Config{s.config(t, "bob", "system:masters"), robot, as, s.config(t, "bob", "system:masters")} {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Pods("default").Create(context.Background(), testPod(string(rune('a'+i))), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.stop() // what is kept is written
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for line := range strings.Lines(string(data)) {
		var e auditv1.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Verb != "create" || e.ObjectRef.Resource != "pods" {
			continue
		}
		user := e.User.Username
		if e.ImpersonatedUser != nil {
			if user != "root" {
				t.Errorf("%s acts as another, not root", user)
			}
			user = e.ImpersonatedUser.Username
		}
		told = append(told, user)
		if e.RequestObject != nil || e.ResponseObject != nil || e.ResponseStatus.Code != 201 || e.AuditID == "" {
			t.Errorf("%+v", e)
		}
	}
	if logged := d.proposers()[before:]; !slices.Equal(told, logged) {
		t.Errorf("the trail tells of %v, the log of %v", told, logged)
	}
}
