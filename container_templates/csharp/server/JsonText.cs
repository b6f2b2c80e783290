using System;
using System.Globalization;
using System.Text;
using Newtonsoft.Json.Linq;

namespace Transship
{
    /// <summary>
    /// Reads JSON of the core. Newtonsoft's reader leaves numbers to Mono, which forgets the sign of zero, and takes texts for dates.
    /// </summary>
    sealed class JsonText
    {
        const int MaxDepth = 100;
        readonly string text;
        int at;

        JsonText(string text)
        {
            this.text = text;
        }

        /// <summary>The value of a whole text; FormatException if it is not JSON.</summary>
        public static JToken Parse(string text)
        {
            var reader = new JsonText(text);
            var value = reader.Value(0);
            reader.Space();
            if (reader.at < text.Length) throw reader.Broken();
            return value;
        }

        FormatException Broken()
        {
            return new FormatException("it is not JSON at character " + at);
        }

        void Space()
        {
            while (at < text.Length && " \t\r\n".IndexOf(text[at]) >= 0) at++;
        }

        char Next()
        {
            Space();
            if (at >= text.Length) throw Broken();
            return text[at];
        }

        bool Take(char wanted)
        {
            if (Next() != wanted) return false;
            at++;
            return true;
        }

        void Expect(char wanted)
        {
            if (!Take(wanted)) throw Broken();
        }

        JToken Value(int depth)
        {
            if (depth > MaxDepth) throw Broken();
            switch (Next())
            {
                case '{': return Object(depth);
                case '[': return Array(depth);
                case '"': return new JValue(String());
                case 't': return Word("true", new JValue(true));
                case 'f': return Word("false", new JValue(false));
                case 'n': return Word("null", new JValue((object)null));
                default: return Number();
            }
        }

        JToken Word(string word, JValue value)
        {
            if (string.CompareOrdinal(text, at, word, 0, word.Length) != 0) throw Broken();
            at += word.Length;
            return value;
        }

        JObject Object(int depth)
        {
            var value = new JObject();
            Expect('{');
            if (Take('}')) return value;
            do
            {
                Space();
                var name = String();
                Expect(':');
                value[name] = Value(depth + 1);
            }
            while (Take(','));
            Expect('}');
            return value;
        }

        JArray Array(int depth)
        {
            var value = new JArray();
            Expect('[');
            if (Take(']')) return value;
            do value.Add(Value(depth + 1));
            while (Take(','));
            Expect(']');
            return value;
        }

        string String()
        {
            Expect('"');
            var value = new StringBuilder();
            while (at < text.Length && text[at] != '"')
            {
                if (text[at] < ' ') throw Broken();
                if (text[at] != '\\')
                {
                    value.Append(text[at++]);
                    continue;
                }
                at++;
                var escape = at < text.Length ? text[at++] : ' ';
                var plain = "\"\\/bfnrt".IndexOf(escape);
                ushort code;
                if (plain >= 0)
                {
                    value.Append("\"\\/\b\f\n\r\t"[plain]);
                }
                else if (escape == 'u' && at + 4 <= text.Length && ushort.TryParse(text.Substring(at, 4), NumberStyles.AllowHexSpecifier, CultureInfo.InvariantCulture, out code))
                {
                    value.Append((char)code);
                    at += 4;
                }
                else
                {
                    throw Broken();
                }
            }
            if (at >= text.Length) throw Broken();
            at++;
            return value.ToString();
        }

        JValue Number()
        {
            var start = at;
            while (at < text.Length && "+-.eE0123456789".IndexOf(text[at]) >= 0) at++;
            var digits = text.Substring(start, at - start);
            long integer;
            if (long.TryParse(digits, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out integer) && (integer != 0 || digits[0] != '-')) return new JValue(integer);
            double number;
            if (!double.TryParse(digits, NumberStyles.Float, CultureInfo.InvariantCulture, out number)) throw Broken();
            return new JValue(number == 0 && digits[0] == '-' ? -0.0 : number);
        }
    }
}
