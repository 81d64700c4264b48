package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Kubernetes' decoders believe what they read. The quantity 1e-2147483647 is rounded by a number of two thousand million
// digits as it is decoded, 1e2147483647 as it is compared with anything; and an object of protobuf that lies in itself
// a million times overflows the stack, which ends a process. So the bytes of whoever is no server are looked at first.
const (
	// MaxExponent is the furthest from 0 that a quantity's exponent may be.
	MaxExponent = 99
	// MaxQuantityLength is how many characters a quantity may have.
	MaxQuantityLength = 128
	// MaxNesting is how deep objects and lists may lie in each other.
	MaxNesting = 500
	// oddRun is how many digits in a row are odd. A quantity of more, none of them before its exponent, may have a length
	// that is a letter: one byte of protobuf, which stands before it.
	oddRun = 'A' - len("e+0")
)

// UnmarshalForeign decodes what somebody has sent who is no server. Fields that are not known are passed over.
func UnmarshalForeign(b []byte, o interface{ Unmarshal([]byte) error }) error {
	if err := CheckForeign(b, reflect.TypeOf(o)); err != nil {
		return err
	}
	return o.Unmarshal(b)
}

// CheckForeign says what is wrong with protobuf bytes of a type before they are decoded, naming the field.
func CheckForeign(b []byte, t reflect.Type) error {
	if !Odd(b) && !nests(t) {
		return nil
	}
	return checkForeign(b, t, 0)
}

// CheckForeignJSON is CheckForeign for JSON.
func CheckForeignJSON(b []byte, t reflect.Type) error {
	if !oddNumbers(b) && !hidesDigits(b) && !deep(b) {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := checkToken(d, t, 0); !errors.Is(err, errNoJSON) {
		return err
	}
	return nil
}

// Odd: there is something in the bytes, of whatever form they are, for which the checks have to know the type.
func Odd(b []byte) bool { return oddNumbers(b) || hidesDigits(b) || opened(b) > MaxNesting }

// Envelope is what protobuf bytes say of themselves behind their magic number, as Kubernetes' API has them: the
// version and kind of an object, and its own bytes. If they say it twice, the last counts.
func Envelope(b []byte) (apiVersion, kind string, object []byte, ok bool) {
	b, ok = bytes.CutPrefix(b, protobufMagic)
	for ok && len(b) > 0 {
		var number int
		var value []byte
		if number, value, b, ok = nextField(b); !ok {
			break
		}
		switch number {
		case 1:
			for ok && len(value) > 0 {
				var text []byte
				if number, text, value, ok = nextField(value); number == 1 {
					apiVersion = string(text)
				} else if number == 2 {
					kind = string(text)
				}
			}
		case 2:
			object = value
		}
	}
	return apiVersion, kind, object, ok
}

// oddNumbers: somewhere in the bytes is what may be a quantity that is refused. Most objects hold nothing like it, and it
// costs two nanoseconds a byte to know.
//
// A quantity needs no digit before its exponent: e9 is 0. An exponent behind a letter is a part of a word.
func oddNumbers(b []byte) bool {
	run := 0
	for i, c := range b {
		switch characters[c] {
		case isDigit:
			if run++; run > oddRun {
				return true
			}
			continue
		case isExponent:
			if (run > 0 || i == 0 || !isLetter(b[i-1])) && longExponent(b[i+1:]) {
				return true
			}
		}
		run = 0
	}
	return false
}

// Kinds of characters that oddNumbers looks for.
const (
	isDigit = iota + 1
	isExponent
)

var characters = [256]uint8{
	'0': isDigit, '1': isDigit, '2': isDigit, '3': isDigit, '4': isDigit, '5': isDigit, '6': isDigit, '7': isDigit, '8': isDigit,
	'9': isDigit, '.': isDigit, 'e': isExponent, 'E': isExponent,
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// opened is how many of JSON's objects and lists begin in the bytes at most.
func opened(b []byte) int { return bytes.Count(b, []byte("{")) + bytes.Count(b, []byte("[")) }

// deep: objects and lists of JSON lie in each other deeper than they may.
func deep(b []byte) bool {
	if opened(b) <= MaxNesting {
		return false
	}
	depth, text := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			text = !text
		case text:
			if c == '\\' {
				i++
			}
		case c == '{' || c == '[':
			if depth++; depth > MaxNesting {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// longExponent: three digits or more follow.
func longExponent(b []byte) bool {
	if len(b) > 0 && (b[0] == '+' || b[0] == '-') {
		b = b[1:]
	}
	const digits = 3
	if len(b) < digits {
		return false
	}
	for _, c := range b[:digits] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// hidesDigits: JSON that writes a character of a number as \u0031, or one by which JSON within it would.
func hidesDigits(b []byte) bool {
	for {
		at := bytes.Index(b, []byte(`\u00`))
		if at < 0 || len(b) < at+6 {
			return false
		}
		n, err := strconv.ParseUint(string(b[at+4:at+6]), 16, 8)
		switch c := byte(n); {
		case err != nil:
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', strings.IndexByte(`+-.\`, c) >= 0:
			return true
		}
		b = b[at+4:]
	}
}

// CheckQuantity says what is wrong with a text before it is parsed as a quantity.
func CheckQuantity(s string) error {
	if err := checkQuantity(s); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), ": "))
	}
	return nil
}

func checkQuantity(s string) error {
	s = strings.TrimSpace(s)
	if len(s) > MaxQuantityLength {
		return fmt.Errorf(": a quantity of %d characters: it may have %d", len(s), MaxQuantityLength)
	}
	at := strings.LastIndexAny(s, "eE")
	if at < 0 {
		return nil
	}
	n, err := strconv.ParseInt(s[at+1:], 10, 64)
	if err != nil && len(s[at+1:]) <= len(strconv.Itoa(MaxExponent)) {
		return nil // E as in 5E: what else it may be, the decoder says
	}
	if err != nil || n > MaxExponent || n < -MaxExponent {
		return fmt.Errorf(": quantity %q: its exponent may be from %d to %d", s, -MaxExponent, MaxExponent)
	}
	return nil
}

// checkForeign looks at the protobuf bytes of a type. Its errors begin with the way to the field.
func checkForeign(b []byte, t reflect.Type, depth int) error {
	t = element(t)
	fields := map[int]reflect.StructField(nil)
	var key, said []byte // of a map's entry
	switch {
	case depth > MaxNesting:
		return errDeep
	case t.Kind() == reflect.Map:
	case t.Kind() == reflect.String:
		return checkText(t, string(b))
	case t.Kind() != reflect.Struct, t == timeType, t == microTimeType:
		return nil
	default:
		fields = protobufFields(t)
	}
	for len(b) > 0 {
		number, value, rest, ok := nextField(b)
		if !ok || t.Kind() == reflect.Map && noEntry(number, value) {
			return errForm
		}
		b = rest
		var err error
		switch f, known := fields[number]; {
		case t == quantityType:
			err = checkQuantity(string(value))
		case t.Kind() == reflect.Map && number == 1:
			key = value
		case t.Kind() == reflect.Map && number == 2:
			said = value
			err = checkForeign(value, t.Elem(), depth+1)
		case known && t == rawExtensionType:
			err = CheckForeignJSON(value, templateType)
		case known:
			if err = checkForeign(value, f.Type, depth+1); err != nil {
				err = fmt.Errorf(".%s%w", f.Name, err)
			}
		}
		if err != nil {
			return err
		}
	}
	return checkEntry(t, string(key), said)
}

// noEntry: a field of a map's entry has no bytes. Kubernetes' decoders take what follows for its length and its bytes all
// the same, whatever type it says that it is of.
func noEntry(number int, value []byte) bool { return value == nil && (number == 1 || number == 2) }

// checkToken looks at the next value of JSON, which is to become one of a type. Where there is no JSON any more it ends with
// errNoJSON: the decoder says more of it.
func checkToken(d *json.Decoder, t reflect.Type, depth int) error {
	token, err := d.Token()
	if err != nil {
		return errNoJSON
	}
	if depth > MaxNesting {
		return errDeep
	}
	if t = element(t); t == rawExtensionType {
		t = templateType
	}
	switch v := token.(type) {
	case json.Delim:
		return checkComposite(d, v, t, depth)
	case string:
		if t == quantityType {
			return checkQuantity(v)
		}
		return checkText(t, v)
	case json.Number:
		if t == quantityType {
			return checkQuantity(v.String())
		}
	}
	return nil
}

func checkComposite(d *json.Decoder, open json.Delim, t reflect.Type, depth int) error {
	for d.More() {
		within, name := t, ""
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return errNoJSON
			}
			name, _ = key.(string)
			if told := tells(t, name); told != nil {
				if err := checkTold(d, told); err != nil {
					return fmt.Errorf(".%s%w", name, err)
				}
				continue
			}
			if err := checkEntry(t, name, nil); err != nil {
				return err
			}
			within = memberOf(t, name)
			name = "." + name
		}
		if err := checkToken(d, within, depth+1); err != nil {
			return fmt.Errorf("%s%w", name, err)
		}
	}
	if _, err := d.Token(); err != nil { // it has no end
		return errNoJSON
	}
	return nil
}

// checkTold looks at the next value of JSON, which is a text in which something is looked for.
func checkTold(d *json.Decoder, told func(text string) error) error {
	var text any
	if err := d.Decode(&text); err != nil {
		return errNoJSON
	}
	said, _ := text.(string)
	return told(said)
}

// memberOf is the type of what a type has under a name of JSON: nothing's, if it has none.
func memberOf(t reflect.Type, name string) reflect.Type {
	switch t.Kind() {
	case reflect.Map:
		return t.Elem()
	case reflect.Struct:
		if member, ok := jsonMembers(t)[name]; ok {
			return member
		}
	}
	return nothingType
}

// membersOfTypes remembers what jsonMembers has found, by type.
var membersOfTypes sync.Map

// jsonMembers are the types of a struct's members by their names in JSON, those of what is inlined with them.
func jsonMembers(t reflect.Type) map[string]reflect.Type {
	if known, ok := membersOfTypes.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	members := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch inner := element(f.Type); {
		case name != "":
			members[name] = f.Type
		case !f.Anonymous && options == "":
			members[f.Name] = f.Type
		case (f.Anonymous || strings.Contains(options, "inline")) && inner.Kind() == reflect.Struct:
			maps.Copy(members, jsonMembers(inner))
		}
	}
	membersOfTypes.Store(t, members)
	return members
}

// nestingTypes remembers what nests has found, by type.
var nestingTypes sync.Map

// nests: somewhere in a type is one that may hold itself, or anything.
func nests(t reflect.Type) bool {
	t = element(t)
	if known, ok := nestingTypes.Load(t); ok {
		return known.(bool)
	}
	found := nestsIn(t, map[reflect.Type]bool{}, map[reflect.Type]bool{})
	nestingTypes.Store(t, found)
	return found
}

// nestsIn looks for a type below itself; above are those that lie around it, done those that hold none.
func nestsIn(t reflect.Type, above, done map[reflect.Type]bool) bool {
	if t = element(t); t.Kind() == reflect.Map {
		t = element(t.Elem())
	}
	switch {
	case above[t], t == rawExtensionType: // which holds JSON
		return true
	case done[t] || t.Kind() != reflect.Struct:
		return false
	}
	above[t] = true
	// order does not matter: it is asked whether there is one.
	for _, f := range protobufFields(t) {
		if nestsIn(f.Type, above, done) {
			return true
		}
	}
	delete(above, t)
	done[t] = true
	return false
}

// element is what a pointer points at, or a list is of.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

var (
	errDeep = fmt.Errorf(": objects lie in each other more than %d deep", MaxNesting)
	errForm = errors.New(": not in the form of protobuf")
	// errNoJSON ends a look at JSON. Nobody is told.
	errNoJSON = errors.New(": no JSON")
	// protobufMagic is what an object's bytes begin with in the API.
	protobufMagic    = []byte{'k', '8', 's', 0}
	nothingType      = reflect.TypeFor[struct{}]()
	annotationsType  = reflect.TypeFor[map[string]string]()
	mediumType       = reflect.TypeFor[corev1.StorageMedium]()
	rawExtensionType = reflect.TypeFor[runtime.RawExtension]()
	// templateType is what is looked for in an object without a type: a controller's revision has a part of one that
	// has a pod's template, and becomes a whole one again.
	templateType = reflect.TypeFor[appsv1.StatefulSet]()
)
