package apiserver

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/apiserver/replies"
)

// converter is a webhook that converts objects, or answers without an end.
type converter struct {
	endless atomic.Bool
	sent    atomic.Int64
}

func (c *converter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, o := range review.Request.Objects {
		var one unstructured.Unstructured
		if err := one.UnmarshalJSON(o.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		one.SetAPIVersion(review.Request.DesiredAPIVersion)
		answer.ConvertedObjects = append(answer.ConvertedObjects, runtime.RawExtension{Object: &one})
	}
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	if !c.endless.Load() {
		_ = json.NewEncoder(w).Encode(&review) // the server may be gone
		return
	}
	_, _ = io.WriteString(w, `{"kind":"`) // likewise
	for some := strings.Repeat("x", 64<<10); ; {
		n, err := io.WriteString(w, some)
		if c.sent.Add(int64(n)); err != nil || c.sent.Load() > 64*maxWebhookAnswer {
			return
		}
	}
}

// TestConversionsAreBounded: a webhook that converts is heard as far as it may be, and that goes by what it was
// sent: a list is converted at once.
func TestConversionsAreBounded(t *testing.T) {
	s, c := start(t, newDouble(t), nil), &converter{}
	hook := httptest.NewTLSServer(c)
	t.Cleanup(hook.Close)
	d := definition("gears", "Gear", apiextensionsv1.NamespaceScoped)
	open := true
	d.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open}
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{
			URL: &hook.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
		},
	}}
	define(t, s, d)
	client, ns := dynamicClient(t, s), s.namespace(t)
	stored, other := client.Resource(customResource("gears", "v1")).Namespace(ns), client.Resource(customResource("gears", "v1beta1")).Namespace(ns)
	const each = 1 << 20
	for i := range maxWebhookAnswer/each + 1 {
		o := customObject("Gear", "v1", fmt.Sprint("gear-", i), map[string]any{"text": strings.Repeat("x", each)})
		if _, err := stored.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := other.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != maxWebhookAnswer/each+1 ||
		list.Items[0].GetAPIVersion() != "custom.example.com/v1beta1" {
		t.Fatalf("a list of more than a webhook may say of one object: %v", err)
	}
	c.endless.Store(true)
	_, err := other.Get(t.Context(), "gear-0", metav1.GetOptions{})
	wantStatus(t, err, 500, replies.ErrTooLong.Error())
	if n := c.sent.Load(); n > 16*maxWebhookAnswer {
		t.Errorf("it has sent %d bytes, and was not stopped", n)
	}
}
