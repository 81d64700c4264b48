package server

import (
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/explain"
)

func TestAskedAbout(t *testing.T) {
	for _, c := range []struct{ namespace, pod, at, text string }{
		{"default", "", "", "both namespace and pod must be given"},
		{"", "web", "", "both namespace and pod must be given"},
		{"default", "web", "soon", `"soon" is not a revision`},
		{"default", "web", "-1", `"-1" is not a revision`},
	} {
		_, err := askedAbout(askedWith(c.namespace, c.pod, c.at))
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v", c, err)
		} else if code, _ := operatorCode(err); code != http.StatusBadRequest {
			t.Errorf("%+v is answered with %d", c, code)
		}
	}
	values := askedWith("default", "web", "7")
	values.Set(ledger.ParamNodes, "true")
	values.Set(ledger.ParamUID, "u")
	q, err := askedAbout(values)
	if want := (explain.Question{Namespace: "default", Pod: "web", UID: "u", At: 7, Nodes: true}); err != nil || !reflect.DeepEqual(q, want) {
		t.Errorf("asked %+v, %v, want %+v", q, err, want)
	}
}

func askedWith(namespace, pod, at string) url.Values {
	return url.Values{ledger.ParamNamespace: {namespace}, ledger.ParamPod: {pod}, ledger.ParamAt: {at}}
}

func TestRefusedQuestionsHaveCodes(t *testing.T) {
	for reason, want := range map[metav1.StatusReason]int{
		metav1.StatusReasonForbidden: 403, metav1.StatusReasonNotFound: 404,
		metav1.StatusReasonBadRequest: 400, metav1.StatusReasonExpired: 410,
	} {
		if code, told := operatorCode(&explain.Refused{Reason: reason}); code != want || told != reason {
			t.Errorf("%s is answered with %d %s, want %d", reason, code, told, want)
		}
	}
}
