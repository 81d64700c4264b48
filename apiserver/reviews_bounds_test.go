package apiserver

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/authorization"

	"github.com/berth-dev/berth/access"
)

func labelReview(s *authorizationv1.LabelSelectorAttributes) *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods", Namespace: "default", LabelSelector: s}
}

func fieldReview(s *authorizationv1.FieldSelectorAttributes) *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods", Namespace: "default", FieldSelector: s}
}

// The selectors of a review are bounded as those of a request, in whatever form they come and whoever asks about whom.
func TestLongSelectorsInReviews(t *testing.T) {
	s := share(t)
	eve := s.clientOf(t, "eve").AuthorizationV1()
	root := s.client(t).AuthorizationV1()
	const labelsTooLong = "spec.resourceAttributes.labelSelector: Too long: may not be more than 16384 bytes"
	const fieldsTooLong = "spec.resourceAttributes.fieldSelector: Too long: may not be more than 16384 bytes"
	requirements := func(n int) (out []metav1.LabelSelectorRequirement) {
		for range n {
			out = append(out, metav1.LabelSelectorRequirement{Key: "-", Operator: "x"})
		}
		return out
	}
	for name, c := range map[string]struct {
		asked *authorizationv1.ResourceAttributes
		told  string
	}{
		"raw":          {labelReview(&authorizationv1.LabelSelectorAttributes{RawSelector: longSelector(maxSelectorBytes + 100)}), labelsTooLong},
		"requirements": {labelReview(&authorizationv1.LabelSelectorAttributes{Requirements: requirements(maxSelectorBytes / requirementBytes)}), labelsTooLong},
		"values": {labelReview(&authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{
			{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: make([]string, maxSelectorBytes/valueBytes)}}}), labelsTooLong},
		"raw fields": {fieldReview(&authorizationv1.FieldSelectorAttributes{RawSelector: strings.Repeat("a=,", maxSelectorBytes/3+1)}), fieldsTooLong},
		"fields": {fieldReview(&authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{
			{Key: "a", Operator: metav1.FieldSelectorOpIn, Values: make([]string, maxSelectorBytes/valueBytes)}}}), fieldsTooLong},
		"as long as may be": {labelReview(&authorizationv1.LabelSelectorAttributes{RawSelector: longSelector(maxSelectorBytes)}), ""},
	} {
		of := authorizationv1.SubjectAccessReviewSpec{User: "ann", ResourceAttributes: c.asked}
		_, self := eve.SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: c.asked}}, metav1.CreateOptions{})
		_, other := root.SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: of}, metav1.CreateOptions{})
		_, local := root.LocalSubjectAccessReviews("default").Create(t.Context(), &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: of}, metav1.CreateOptions{})
		for who, err := range map[string]error{"self": self, "other": other, "local": local} {
			if c.told != "" {
				wantStatus(t, err, 422, c.told)
			} else if err != nil {
				t.Errorf("%s of %s: %v", name, who, err)
			}
		}
	}
	_, err := root.SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		Groups: many(maxReviewGroups+1, "g%d"), ResourceAttributes: labelReview(nil)}}, metav1.CreateOptions{})
	wantStatus(t, err, 422, "spec.groups: Too many: 4097: must have at most 4096 items")
}

// A review with long selectors is charged as the request that it asks about.
func TestLongSelectorsInReviewsArePaced(t *testing.T) {
	asked := func(who user.Info, selector string) admission.Attributes {
		var review runtime.Object = &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorization.ResourceAttributes{LabelSelector: &authorization.LabelSelectorAttributes{RawSelector: selector}}}}
		return admission.NewAttributesRecord(review, nil, authorization.Kind("SelfSubjectAccessReview").WithVersion("v1"), "", "",
			schema.GroupVersionResource{}, "", admission.Create, nil, false, who)
	}
	synctest.Test(t, func(t *testing.T) {
		b := bounds{&pace{share: 0.25}}
		took := func(a admission.Attributes, times int) time.Duration {
			began := time.Now()
			for range times {
				b.pace.ask("calm")
				if err := b.Admit(t.Context(), a, nil); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		eve, long := &user.DefaultInfo{Name: "eve"}, longSelector(4096)
		if waited := took(asked(eve, "app=web"), 10_000); waited > 0 {
			t.Errorf("short ones waited for %s", waited)
		}
		times := int(3 * paceBurst / selectorBytesCost(len(long)))
		if waited := took(asked(eve, long), times); waited < asksFor {
			t.Errorf("%d of a second's work in all waited for %s", times, waited)
		}
		if waited := took(asked(&user.DefaultInfo{Name: "root", Groups: []string{access.Masters}}, long), times); waited > 0 {
			t.Errorf("one of %s waited for %s", access.Masters, waited)
		}
	})
}
