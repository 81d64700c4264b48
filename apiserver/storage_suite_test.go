package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	core "k8s.io/kubernetes/pkg/apis/core"
	node "k8s.io/kubernetes/pkg/apis/node"

	"github.com/berth-dev/berth/fsm"
)

// suiteKind keeps the suite's own kind, the example Pod, in secrets: what is
// tested is what all kinds share.
func suiteKind(d *double) *kind {
	const held = "object"
	k := plainKind[core.Secret, corev1.Secret](core.Resource("secrets"))
	k.newObject = func() runtime.Object { return new(example.Pod) }
	k.present = func(*fsm.View) presenter {
		return func(row any, into runtime.Object) error {
			s := row.(*fsm.Object).Value.(*corev1.Secret)
			pod := into.(*example.Pod)
			if err := json.Unmarshal(s.Data[held], pod); err != nil {
				return err
			}
			pod.ObjectMeta = *s.ObjectMeta.DeepCopy()
			return nil
		}
	}
	put := func(obj runtime.Object, revision int64) (fsm.Command, error) {
		pod, b, err := withoutMeta(obj)
		if err != nil {
			return nil, err
		}
		if _, ok := d.View().Namespaces.Get(pod.Namespace); !ok {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, UID: types.UID("ns-" + pod.Namespace)}}
			if _, err := d.Propose(context.Background(), fsm.Proposal{Command: &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Create: true}}); err != nil {
				return nil, err
			}
		}
		s := corev1.Secret{ObjectMeta: pod.ObjectMeta, Data: map[string][]byte{held: b}}
		raw, err := s.Marshal()
		return &fsm.PutObject{Resource: "secrets", Raw: raw, Create: revision == 0, Revision: revision}, err
	}
	k.create = func(obj runtime.Object) (fsm.Command, error) { return put(obj, 0) }
	k.update = put
	return k
}

// withoutMeta is the suite's pod, and what of it is not its metadata, encoded.
func withoutMeta(obj runtime.Object) (*example.Pod, []byte, error) {
	pod := obj.(*example.Pod)
	bare := *pod
	bare.ObjectMeta = metav1.ObjectMeta{}
	b, err := json.Marshal(bare)
	return pod, b, err
}

// suiteClusterKind keeps those that are in no namespace, in an annotation of
// runtime classes.
func suiteClusterKind() *kind {
	const held = "object"
	k := inNoNamespace(plainKind[node.RuntimeClass, nodev1.RuntimeClass](node.Resource("runtimeclasses")))
	k.newObject = func() runtime.Object { return new(example.Pod) }
	k.present = func(*fsm.View) presenter {
		return func(row any, into runtime.Object) error {
			c := row.(*fsm.Object).Value.(*nodev1.RuntimeClass)
			pod := into.(*example.Pod)
			if err := json.Unmarshal([]byte(c.Annotations[held]), pod); err != nil {
				return err
			}
			pod.ObjectMeta = *c.ObjectMeta.DeepCopy()
			pod.Annotations = nil
			return nil
		}
	}
	put := func(obj runtime.Object, revision int64) (fsm.Command, error) {
		pod, b, err := withoutMeta(obj)
		if err != nil {
			return nil, err
		}
		c := nodev1.RuntimeClass{ObjectMeta: *pod.ObjectMeta.DeepCopy()}
		c.Annotations = map[string]string{held: string(b)}
		raw, err := c.Marshal()
		return &fsm.PutObject{Resource: "runtimeclasses", Raw: raw, Create: revision == 0, Revision: revision}, err
	}
	k.create = func(obj runtime.Object) (fsm.Command, error) { return put(obj, 0) }
	k.update = put
	return k
}

func suiteAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod := obj.(*example.Pod)
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
	}, nil
}

// suiteStore is one server's storage as the suite wants it.
type suiteStore struct {
	*tables
	double *double
}

// newSuiteStore: the namespaces that the suite uses are there before it looks
// at revisions.
func newSuiteStore(t *testing.T) *suiteStore {
	d := newDouble(t)
	for _, name := range []string{"test-ns", "first", "second", "third", "ns", "ns-1", "ns-2", "ns1", "ns2", "pods"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ns-" + name)}}
		d.must(t, &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Create: true})
	}
	p := newPins(time.Now)
	h := newHub(d, p)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &suiteStore{&tables{kind: suiteKind(d), prefix: "/pods/", backend: d, pins: p, hub: h, attrs: suiteAttrs}, d}
}

// increase makes the revision grow without a change of the suite's objects.
func (s *suiteStore) increase(_ context.Context, t *testing.T) int64 {
	s.double.must(t, &fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("more-%d", s.double.View().Revision()), UID: "more"},
	}}})
	return s.double.View().Revision()
}

// transformers are of etcd's store: it encrypts values there.
func (s *suiteStore) UpdatePrefixTransformer(storagetesting.PrefixTransformerModifier) func() {
	return func() {}
}

var (
	noKey   = func(context.Context, *testing.T, string) {}
	noCalls = func(*testing.T, uint64, uint64) {}
)

// TestStorageSuite runs Kubernetes' own tests of a storage.Interface.
func TestStorageSuite(t *testing.T) {
	ctx := context.Background()
	run := func(name string, f func(t *testing.T, s *suiteStore)) {
		t.Run(name, func(t *testing.T) { f(t, newSuiteStore(t)) })
	}
	plain := map[string]func(context.Context, *testing.T, storage.Interface){
		"CreateWithKeyExist":                        storagetesting.RunTestCreateWithKeyExist,
		"Get":                                       storagetesting.RunTestGet,
		"UnconditionalDelete":                       storagetesting.RunTestUnconditionalDelete,
		"ConditionalDelete":                         storagetesting.RunTestConditionalDelete,
		"DeleteWithSuggestion":                      storagetesting.RunTestDeleteWithSuggestion,
		"DeleteWithSuggestionAndConflict":           storagetesting.RunTestDeleteWithSuggestionAndConflict,
		"DeleteWithConflict":                        storagetesting.RunTestDeleteWithConflict,
		"DeleteWithSuggestionOfDeletedObject":       storagetesting.RunTestDeleteWithSuggestionOfDeletedObject,
		"ValidateDeletionWithSuggestion":            storagetesting.RunTestValidateDeletionWithSuggestion,
		"ValidateDeletionWithOnlySuggestionValid":   storagetesting.RunTestValidateDeletionWithOnlySuggestionValid,
		"GetListRecursivePrefix":                    storagetesting.RunTestGetListRecursivePrefix,
		"GuaranteedUpdateWithSuggestionAndConflict": storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict,
		"ListPaging":                                storagetesting.RunTestListPaging,
		"NamespaceScopedList":                       storagetesting.RunTestNamespaceScopedList,
		"Watch":                                     storagetesting.RunTestWatch,
		"DeleteTriggerWatch":                        storagetesting.RunTestDeleteTriggerWatch,
		"WatchFromNonZero":                          storagetesting.RunTestWatchFromNonZero,
		"DelayedWatchDelivery":                      storagetesting.RunTestDelayedWatchDelivery,
		"WatchContextCancel":                        storagetesting.RunTestWatchContextCancel,
		"WatcherTimeout":                            storagetesting.RunTestWatcherTimeout,
		"WatchDeleteEventObjectHaveLatestRV":        storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV,
		"WatchInitializationSignal":                 storagetesting.RunTestWatchInitializationSignal,
		"NamespaceScopedWatch":                      storagetesting.RunTestNamespaceScopedWatch,
		"OptionalWatchBookmarks":                    storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion,
	}
	for name, f := range plain {
		run(name, func(t *testing.T, s *suiteStore) { f(ctx, t, s) })
	}
	run("Create", func(t *testing.T, s *suiteStore) { storagetesting.RunTestCreate(ctx, t, s, noKey) })
	run("ConsistentList", func(t *testing.T, s *suiteStore) {
		storagetesting.RunTestConsistentList(ctx, t, s, s.increase, false, true, false)
	})
	run("GetListNonRecursive", func(t *testing.T, s *suiteStore) { storagetesting.RunTestGetListNonRecursive(ctx, t, s.increase, s) })
	run("ListContinuation", func(t *testing.T, s *suiteStore) { storagetesting.RunTestListContinuation(ctx, t, s, noCalls) })
	run("ListContinuationWithFilter", func(t *testing.T, s *suiteStore) {
		storagetesting.RunTestListContinuationWithFilter(ctx, t, s, noCalls)
	})
	run("ClusterScopedWatch", func(t *testing.T, s *suiteStore) {
		s.kind = suiteClusterKind()
		storagetesting.RunTestClusterScopedWatch(ctx, t, s)
	})
	run("ListResourceVersionMatch", func(t *testing.T, s *suiteStore) {
		s.kind = suiteClusterKind()
		storagetesting.RunTestListResourceVersionMatch(ctx, t, s)
	})
	run("ListPaginationRareObject", func(t *testing.T, s *suiteStore) {
		s.kind = suiteClusterKind()
		storagetesting.RunTestListPaginationRareObject(ctx, t, s, noCalls)
	})
	run("WatchDispatchBookmarkEvents", func(t *testing.T, s *suiteStore) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
	})
}

// TestEverySuiteFunctionIsNamed fails when the suite has a function that is
// neither run nor left with a reason.
func TestEverySuiteFunctionIsNamed(t *testing.T) {
	pkg, err := build.Import("k8s.io/apiserver/pkg/storage/testing", ".", 0)
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.ReadFile("storage_suite_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range pkg.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(pkg.Dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "RunTest") {
				continue
			}
			_, left := suiteLeft[strings.TrimPrefix(fn.Name.Name, "RunTest")]
			if runs := regexp.MustCompile(`storagetesting\.` + fn.Name.Name + `\b`).Match(here); runs == left {
				t.Errorf("%s: run %t, left %t", fn.Name.Name, runs, left)
			}
		}
	}
}

// suiteLeft are the functions of the suite that cannot hold here, and why. Those
// that are about etcd's values (TTL, transformers, compaction) have nothing to
// run on: TestEverySuiteFunctionIsNamed holds that none is forgotten.
var suiteLeft = map[string]string{
	"CreateWithTTL":                      "objects have no time to live; events expire by the state's own rule",
	"GuaranteedUpdateWithTTL":            "as CreateWithTTL",
	"TransformationFailure":              "values are not transformed by the storage",
	"WatchError":                         "as TransformationFailure",
	"WatchWithUnsafeDelete":              "as TransformationFailure",
	"GuaranteedUpdateChecksStoredData":   "as TransformationFailure",
	"Stats":                              "sizes are those of etcd's values",
	"CompactRevision":                    "the feed is bounded by itself; nobody compacts it",
	"List":                               "asks for compaction; what it lists is in ListContinuation, ListPaging and ListResourceVersionMatch",
	"ListInconsistentContinuation":       "asks for compaction; TestChunksExpire has it",
	"WatchFromZero":                      "asks for compaction",
	"KeySchema":                          "keys come from upstream's registry alone, which makes them of its prefix, a namespace and a name",
	"PreconditionalDeleteWithSuggestion": "changes the UID of an object, which stays the same here",
	"PreconditionalDeleteWithOnlySuggestionPass": "as PreconditionalDeleteWithSuggestion",
	"GuaranteedUpdateWithConflict":               "changes the UID and the name of what is under a key",
	"GuaranteedUpdate":                           "puts one name under several keys; the key of a row is its name",
}
