package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/fsm"
)

// fewAtATime is a level for a user, and the schema that leads there: whoever is too many is refused.
func fewAtATime(name, user string) (*flowcontrolv1.PriorityLevelConfiguration, *flowcontrolv1.FlowSchema) {
	share, none := int32(1), int32(0)
	level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: &share, LendablePercent: &none, BorrowingLimitPercent: &none,
			LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
		},
	}}
	schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: name}, MatchingPrecedence: 100,
		DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: user}}},
			ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"}}},
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
		}},
	}}
	return level, schema
}

func isDangling(t *testing.T, kube kubernetes.Interface, name string) flowcontrolv1.ConditionStatus {
	t.Helper()
	s, err := kube.FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Status.Conditions {
		if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
			return c.Status
		}
	}
	return ""
}

// whoAmI asks what everybody may ask.
func whoAmI(ctx context.Context, kube kubernetes.Interface) error {
	_, err := kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	return err
}

// A schema leads a user's requests to a level; a schema whose level is not there says so. Who has as much under way as his level
// takes is refused, and nobody else is.
func TestPriorityAndFairness(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, func(c *Config) { c.MaxRequests = 16 })
	root := s.client(t)
	level, schema := fewAtATime("few", "storm")
	if _, err := root.FlowcontrolV1().FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a schema that leads nowhere says so", func() bool { return isDangling(t, root, "few") == flowcontrolv1.ConditionTrue })
	made, err := root.FlowcontrolV1().PriorityLevelConfigurations().Create(t.Context(), level, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the schema leads somewhere", func() bool { return isDangling(t, root, "few") == flowcontrolv1.ConditionFalse })

	config := s.config(t, "storm")
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	review := config.Host + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	storm, calm := s.clientOf(t, "storm"), s.clientOf(t, "calm")
	eventually(t, "the level is the user's", func() bool {
		resp, err := client.Get(config.Host + "/version")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.Header.Get("X-Kubernetes-PF-PriorityLevel-UID") == string(made.UID)
	})
	var bodies []*io.PipeWriter
	answers := make(chan error, 8)
	for range cap(answers) {
		r, w := io.Pipe()
		bodies = append(bodies, w)
		go func() {
			resp, err := client.Post(review, "application/json", r)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				err = resp.Body.Close()
			}
			answers <- err
		}()
	}
	eventually(t, "the user has too many under way", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := storm.AuthenticationV1().RESTClient().Post().Resource("selfsubjectreviews").MaxRetries(0).Body(&authenticationv1.SelfSubjectReview{}).Do(ctx).Error()
		if err != nil && !apierrors.IsTooManyRequests(err) {
			t.Fatal(err)
		}
		return err != nil
	})
	if err := whoAmI(t.Context(), calm); err != nil {
		t.Errorf("another user: %v", err)
	}
	if _, err := root.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("an administrator: %v", err)
	}
	for _, path := range []string{"dump_priority_levels", "dump_queues", "dump_requests"} {
		raw, err := root.CoreV1().RESTClient().Get().AbsPath("/debug/api_priority_and_fairness/" + path).Do(t.Context()).Raw()
		if err != nil || path == "dump_priority_levels" && !strings.Contains(string(raw), "few,") {
			t.Errorf("%s: %v: %s", path, err, raw)
		}
	}
	err = calm.CoreV1().RESTClient().Get().AbsPath("/debug/api_priority_and_fairness/dump_requests").Do(t.Context()).Error()
	if !apierrors.IsForbidden(err) {
		t.Errorf("anybody sees what others ask: %v", err)
	}
	for _, w := range bodies {
		_ = w.CloseWithError(io.ErrUnexpectedEOF)
	}
	for range cap(answers) {
		<-answers
	}
	eventually(t, "the user is heard again", func() bool { return whoAmI(t.Context(), storm) == nil })
}

// Watches take no seat once they have begun.
func TestWatchesTakeNoSeats(t *testing.T) {
	s := start(t, newDouble(t), func(c *Config) { c.MaxRequests = 16 })
	calm := s.clientOf(t, "calm")
	definitions, err := clientset.NewForConfig(s.config(t, "calm"))
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		w, err := definitions.ApiextensionsV1().CustomResourceDefinitions().Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
	}
	if err := whoAmI(t.Context(), calm); err != nil {
		t.Error(err)
	}
}

// Below the version that brought them, the kinds are refused, and requests are answered all the same.
func TestFlowControlNeedsItsVersion(t *testing.T) {
	s := start(t, newDoubleAt(t, fsm.SinceFlowControl-1), nil)
	level, _ := fewAtATime("few", "storm")
	_, err := s.client(t).FlowcontrolV1().PriorityLevelConfigurations().Create(t.Context(), level, metav1.CreateOptions{})
	wantStatus(t, err, http.StatusBadRequest, fmt.Sprintf("%q", fsm.PriorityLevels))
	if err := whoAmI(t.Context(), s.clientOf(t, "calm")); err != nil {
		t.Error(err)
	}
}
