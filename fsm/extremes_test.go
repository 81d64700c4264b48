package fsm

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/store"
)

// extremes puts values that nobody expects anywhere into a value: what the API
// would refuse, too, since Apply must not rely on who proposed.
type extremes struct{ t *rapid.T }

func (x extremes) times() time.Time {
	return rapid.SampledFrom([]time.Time{
		{}, time.Unix(0, 0), time.Unix(0, 1), time.Unix(1, 999_999_999), worldStart.Add(500 * time.Millisecond), worldStart.Add(7),
		time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.FixedZone("west", -12*3600)), time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1, 1, 1, 0, 0, 0, 1, time.FixedZone("east", 14*3600)),
		time.Unix(math.MaxInt64, 0), time.Unix(math.MinInt64, 0), time.Unix(1<<40, 0), time.Unix(-1<<40, 0),
		worldStart.In(time.FixedZone("odd", 1234)), worldStart.Add(math.MaxInt64), worldStart.Add(-time.Hour),
	}).Draw(x.t, "time")
}

func (x extremes) quantity() apiresource.Quantity {
	return apiresource.MustParse(rapid.SampledFrom([]string{
		"0", "-0", "-1", "0.5", "500m", "1000m", "1n", "0.0000000001", "1e3", "1E3", "12e6", "1Ki", "1024", "1.5Gi", "100E", "8Ei",
		"9223372036854775807", "-9223372036854775808", "99999999999999999999999999", "1e1000", "4611686018427387904", "010", "+3",
	}).Draw(x.t, "quantity"))
}

func (x extremes) text() string {
	return rapid.SampledFrom([]string{
		"", " ", "a", "default", "web", "n1", "uid", "team", "high", "low", "\xff\xfe", "a\x00b", "a/b", "../..", "\u2028", "ä", strings.Repeat("x", 300), "None",
		"True", "Running", "0", "-1", "9223372036854775808", "kubernetes.io/hostname", "berth.dev/disruption-policy", "foregroundDeletion", "orphan",
		"ReplicaSet", "v1", "apps/v1",
	}).Draw(x.t, "text")
}

func (x extremes) integer() int64 {
	return rapid.SampledFrom([]int64{0, 1, -1, 2, 7, 127, 128, -128, 255, 256, math.MaxInt16, math.MaxInt32, math.MinInt32, math.MaxUint32,
		math.MaxInt32 + 1, math.MaxInt64, math.MinInt64, math.MaxInt64 - 1, 18446744173, 1 << 53}).Draw(x.t, "integer")
}

// spoil changes one thing somewhere inside of a value.
func (x extremes) spoil(v reflect.Value) {
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.Time{Time: x.times()}))
		return
	case metav1.MicroTime:
		v.Set(reflect.ValueOf(metav1.MicroTime{Time: x.times()}))
		return
	case apiresource.Quantity:
		v.Set(reflect.ValueOf(x.quantity()))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if f := x.field(v); f.IsValid() {
			x.spoil(f)
		}
	case reflect.Pointer:
		x.spoilPointer(v)
	case reflect.Slice:
		x.spoilSlice(v)
	case reflect.Map:
		x.spoilMap(v)
	case reflect.String:
		v.SetString(x.text())
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(x.integer())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(x.integer()))
	case reflect.Float64, reflect.Float32:
		v.SetFloat(rapid.SampledFrom([]float64{0, -1, math.NaN(), math.Inf(1), math.MaxFloat64}).Draw(x.t, "float"))
	}
}

// field is one of a struct's, rather one in which something is.
func (x extremes) field(v reflect.Value) reflect.Value {
	var filled, all []int
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		all = append(all, i)
		if !v.Field(i).IsZero() {
			filled = append(filled, i)
		}
	}
	if len(filled) > 0 && rapid.IntRange(0, 2).Draw(x.t, "filled") > 0 {
		all = filled
	}
	if len(all) == 0 {
		return reflect.Value{}
	}
	return v.Field(rapid.SampledFrom(all).Draw(x.t, "field"))
}

func (x extremes) spoilPointer(v reflect.Value) {
	if v.IsNil() {
		v.Set(reflect.New(v.Type().Elem())) // to a zero value
		if rapid.Bool().Draw(x.t, "zero") {
			return
		}
	} else if rapid.IntRange(0, 5).Draw(x.t, "nil") == 0 {
		v.SetZero()
		return
	}
	x.spoil(v.Elem())
}

func (x extremes) spoilSlice(v reflect.Value) {
	what := rapid.IntRange(0, 6).Draw(x.t, "slice")
	switch {
	case what == 0:
		v.SetZero()
	case what == 1:
		v.Set(reflect.MakeSlice(v.Type(), 0, 1))
	case what == 2 && v.Len() > 0: // twice the same
		v.Set(reflect.Append(reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, v.Len()+1), v), v.Index(0)))
	case what == 3 || v.Len() == 0:
		one := reflect.New(v.Type().Elem()).Elem()
		x.spoil(one)
		v.Set(reflect.Append(reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, v.Len()+1), v), one))
	default:
		x.spoil(v.Index(rapid.IntRange(0, v.Len()-1).Draw(x.t, "index")))
	}
}

func (x extremes) spoilMap(v reflect.Value) {
	switch rapid.IntRange(0, 3).Draw(x.t, "map") {
	case 0:
		v.SetZero()
	case 1:
		v.Set(reflect.MakeMap(v.Type()))
	default:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		x.spoil(key)
		x.spoil(value)
		v.SetMapIndex(key, value)
	}
}

// unconditional takes away what a command demands of revisions and UIDs, so
// that more of it is carried out.
func unconditional(c Command) {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		switch f := v.Type().Field(i); {
		case f.Type == reflect.TypeFor[Precondition](), f.Name == "Revision":
			v.Field(i).SetZero()
		}
	}
}

// TestExtremeValues: whatever stands in a command, two servers come to the same
// state with it, though one of them is restored from a snapshot before every
// entry; and every row that comes of it is what is read back.
func TestExtremeValues(t *testing.T) {
	base := inhabited(t).View()
	number := len(samples())
	rapid.Check(t, func(t *rapid.T) {
		x := extremes{t}
		w := newWorld(t)
		w.state, w.replica, w.index, w.now = base.Fork(), base.Fork(), base.Index(), base.Now()
		w.reshadow()
		for range rapid.IntRange(1, 5).Draw(t, "commands") {
			c := samples()[rapid.IntRange(0, number-1).Draw(t, "command")]
			if rapid.IntRange(0, 4).Draw(t, "unconditional") > 0 {
				unconditional(c)
			}
			for range rapid.IntRange(0, 4).Draw(t, "spoils") {
				x.spoil(reflect.ValueOf(c).Elem())
			}
			w.applyAnything(c)
			w.replica = restoredFrom(t, w.replica.View())
			compareViews(t, "restored", w.view(), w.replica.View())
			w.now = w.now.Add(time.Duration(rapid.Int64Range(0, 20_000).Draw(t, "later")) * time.Millisecond)
		}
	})
}

// applyAnything is apply for commands that perhaps nobody can read.
func (w *world) applyAnything(c Command) {
	w.t.Helper()
	entry, err := EncodeEntry(Header{Version: LogVersion, TimeUnixNano: w.now.UnixNano(), Server: "s1"},
		[]Proposal{{User: w.user, Groups: w.groups, Command: c}})
	if err != nil {
		return // nobody could have sent it
	}
	if _, _, err := DecodeEntry(entry); errors.Is(err, store.ErrUnknownCommand) {
		if _, err := w.state.View().Fork().Apply(w.index+1, 1, entry); !errors.Is(err, store.ErrUnknownCommand) {
			w.t.Fatalf("%T has an unknown field and is applied: %v", c, err)
		}
		return // it stops every server of this version
	} else if err != nil {
		w.t.Fatalf("%T: what was encoded can not be decoded: %v", c, err)
	}
	w.applyEntry(entry)
	for _, f := range w.state.Faults() {
		w.t.Fatalf("%T panics: %s\n%s", c, f.Value, f.Stack)
	}
}
