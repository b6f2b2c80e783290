using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Reflection;
using System.Text;
using System.Text.RegularExpressions;
using Newtonsoft.Json;
using Newtonsoft.Json.Linq;

namespace Transship
{
    /// <summary>
    /// The handler's values to and from plain columns, in which all but numbers, bool and bytes are texts in the JSON form of docs/types.md.
    /// README.md says which class holds which type.
    /// </summary>
    static class Values
    {
        const long MaxSafeInteger = 1L << 53;
        static readonly CultureInfo Plain = CultureInfo.InvariantCulture;
        static readonly Dictionary<string, Type> Classes = new Dictionary<string, Type>
        {
            { "bool", typeof(bool) }, { "int2", typeof(short) }, { "int4", typeof(int) }, { "int8", typeof(long) },
            { "float4", typeof(float) }, { "float8", typeof(double) }, { "bytea", typeof(byte[]) }, { "date", typeof(DateTime) },
            { "timestamp", typeof(DateTime) }, { "timestamptz", typeof(DateTimeOffset) }, { "numeric", typeof(decimal) },
            { "uuid", typeof(Guid) }, { "time", typeof(TimeSpan) }, { "interval", typeof(Interval) }, { "datetime2", typeof(DateTime) },
        };
        /// <summary>Types that a handler may also take as the text of the JSON form.</summary>
        static readonly string[] AlsoText = { "date", "timestamp", "timestamptz", "numeric", "datetime2" };

        /// <summary>Names are the same without underscores and case: C# writes add_one as AddOne.</summary>
        public static bool IsSameName(string sql, string csharp)
        {
            return string.Equals(sql.Replace("_", ""), csharp.Replace("_", ""), StringComparison.OrdinalIgnoreCase);
        }

        /// <summary>The class that holds a type where the handler names none, as in a map function's rows; nested types are JSON.</summary>
        public static Type ClassOf(SqlType type)
        {
            Type found;
            if (IsNested(type)) return typeof(string);
            if (type.Type == "numeric" || !Classes.TryGetValue(type.Type, out found)) return typeof(string);
            return found.IsValueType ? typeof(Nullable<>).MakeGenericType(found) : found;
        }

        /// <summary>The way from a row of a column to a value of a class. ArgumentException if the class cannot hold the type.</summary>
        public static Func<GivenColumn, int, object> ColumnReader(SqlType type, Type target)
        {
            var inner = Nullable.GetUnderlyingType(target) ?? target;
            var isNullable = inner != target || !target.IsValueType;
            var read = PresentReader(type, inner);
            return (column, row) =>
            {
                if (!column.IsNull(row)) return read(column, row);
                if (!isNullable) throw new OutOfRange();
                return null;
            };
        }

        static Func<GivenColumn, int, object> PresentReader(SqlType type, Type target)
        {
            if (IsNested(type) && target == typeof(string)) return (column, row) => column.Text(row);
            var read = ValueReader(type, target);
            if (IsNested(type)) return (column, row) => read(JsonText.Parse(column.Text(row)));
            switch (type.Type)
            {
                case "bool": return (column, row) => column.Bool(row);
                case "int2": return (column, row) => (short)column.Integers[row];
                case "int4": return (column, row) => (int)column.Integers[row];
                case "int8": return (column, row) => column.Integers[row];
                case "float4": return (column, row) => (float)column.Floats[row];
                case "float8": return (column, row) => column.Floats[row];
                case "bytea": return (column, row) => column.Bytes(row);
            }
            if (target == typeof(string)) return (column, row) => column.Text(row);
            return (column, row) => read(new JValue(column.Text(row)));
        }

        /// <summary>Whether values in JSON are arrays or objects.</summary>
        static bool IsNested(SqlType type)
        {
            return type.Type == "array" || type.Type == "interval" || type.Parts.Count > 0;
        }

        /// <summary>The way from JSON values of a type to values of a class. ArgumentException if there is none.</summary>
        static Func<JToken, object> Reader(SqlType type, Type target)
        {
            var inner = Nullable.GetUnderlyingType(target) ?? target;
            var isNullable = inner != target || !target.IsValueType;
            var read = ValueReader(type, inner);
            return token =>
            {
                if (token != null && token.Type != JTokenType.Null) return read(token);
                if (!isNullable) throw new OutOfRange();
                return null;
            };
        }

        static Func<JToken, object> ValueReader(SqlType type, Type target)
        {
            if (type.Type == "array" && target.IsArray)
            {
                var read = Reader(type.Element, target.GetElementType());
                return token =>
                {
                    var values = Of<JArray>(token);
                    var array = Array.CreateInstance(target.GetElementType(), values.Count);
                    for (var i = 0; i < values.Count; i++) array.SetValue(read(values[i]), i);
                    return array;
                };
            }
            if (type.Parts.Count > 0)
            {
                var members = MembersOf(type, target);
                var readers = members.Select((member, i) => Reader(type.Parts[i].Value, ClassOf(member))).ToArray();
                return token =>
                {
                    var given = Of<JObject>(token);
                    var value = Activator.CreateInstance(target);
                    for (var i = 0; i < readers.Length; i++) Set(members[i], value, readers[i](given[type.Parts[i].Key]));
                    return value;
                };
            }
            if (target == typeof(string) && AlsoText.Contains(type.Type)) return token => Text(token);
            Type expected;
            if (!Classes.TryGetValue(type.Type, out expected)) expected = typeof(string);
            if (target != expected) throw new ArgumentException("C# type " + target.Name + " does not hold SQL type " + type.Text);
            return token => ReadScalar(type.Type, token);
        }

        static object ReadScalar(string type, JToken token)
        {
            try
            {
                switch (type)
                {
                    case "bool": return token.Type == JTokenType.Boolean ? (bool)token : throw new Misfit(token);
                    case "int2": return checked((short)Integer(token));
                    case "int4": return checked((int)Integer(token));
                    case "int8": return Integer(token);
                    case "float4": return (float)Float(token);
                    case "float8": return Float(token);
                    case "bytea": return Convert.FromBase64String(Text(token));
                    case "date": return Moment(Text(token), "yyyy-MM-dd");
                    case "timestamp": return Moment(Text(token), "yyyy-MM-dd'T'HH:mm:ss.FFFFFF");
                    case "datetime2": return Moment(Text(token), "yyyy-MM-dd'T'HH:mm:ss.FFFFFFF");
                    case "timestamptz":
                        if (IsInfinite(Text(token))) throw new OutOfRange();
                        return DateTimeOffset.ParseExact(Text(token), "yyyy-MM-dd'T'HH:mm:ss.FFFFFFK", Plain, DateTimeStyles.AssumeUniversal);
                    case "numeric":
                        var digits = Text(token);
                        if (Regex.IsMatch(digits, "^(NaN|-?Infinity)$")) throw new OutOfRange();
                        return Decimal(digits);
                    case "uuid": return Guid.ParseExact(Text(token), "D");
                    case "time":
                        if (Text(token).StartsWith("24:00:00", StringComparison.Ordinal)) return TimeSpan.FromDays(1);
                        return TimeSpan.ParseExact(Text(token), new[] { "hh\\:mm\\:ss", "hh\\:mm\\:ss\\.FFFFFF" }, Plain);
                    case "interval":
                        var given = Of<JObject>(token);
                        Func<string, long> part = name => given[name] == null ? 0 : Integer(given[name]);
                        return new Interval { Months = checked((int)part("months")), Days = checked((int)part("days")), Nanoseconds = checked(part("microseconds") * 1000 + part("nanoseconds")) };
                    default: return Text(token);
                }
            }
            catch (Exception cause) when (cause is FormatException || cause is OverflowException || cause is ArgumentException)
            {
                throw new Misfit(token);
            }
        }

        static bool IsInfinite(string text)
        {
            return text == "infinity" || text == "-infinity";
        }

        static DateTime Moment(string text, string format)
        {
            // DateTime has the years 1 to 9999.
            if (IsInfinite(text) || Regex.IsMatch(text, @"^([+-]|\d{5,})")) throw new OutOfRange();
            return DateTime.ParseExact(text, format, Plain, DateTimeStyles.None);
        }

        static decimal Decimal(string text)
        {
            decimal value;
            if (!decimal.TryParse(text, NumberStyles.Float, Plain, out value)) throw Regex.IsMatch(text, @"^[+-]?[\d.]+(e[+-]?\d+)?$", RegexOptions.IgnoreCase) ? (Exception)new OutOfRange() : new Misfit(text);
            // 28 digits at most: what was rounded is told.
            if (Significant(text) != Significant(value.ToString(Plain))) throw new OutOfRange();
            return value;
        }

        /// <summary>The digits of a number without zeros before and behind them.</summary>
        static string Significant(string number)
        {
            var exponent = number.IndexOfAny(new[] { 'e', 'E' });
            return Regex.Replace(exponent < 0 ? number : number.Substring(0, exponent), @"\D", "").Trim('0');
        }

        static T Of<T>(JToken token) where T : JToken
        {
            var found = token as T;
            if (found == null) throw new Misfit(token);
            return found;
        }

        static string Text(JToken token)
        {
            if (token.Type != JTokenType.String) throw new Misfit(token);
            return (string)token;
        }

        static long Integer(JToken token)
        {
            return token.Type == JTokenType.Integer ? (long)token : long.Parse(Text(token), NumberStyles.AllowLeadingSign, Plain);
        }

        static double Float(JToken token)
        {
            if (token.Type == JTokenType.Integer || token.Type == JTokenType.Float) return (double)token;
            switch (Text(token))
            {
                case "NaN": return double.NaN;
                case "Infinity": return double.PositiveInfinity;
                case "-Infinity": return double.NegativeInfinity;
            }
            return double.Parse(Text(token), NumberStyles.Float, Plain);
        }

        /// <summary>The text of a result in a plain column. Misfit if it is not of the type.</summary>
        public static string ToText(SqlType type, object value)
        {
            if (!IsNested(type)) return ScalarText(type.Type, value);
            var text = new StringBuilder();
            Write(text, type, value);
            return text.ToString();
        }

        /// <summary>A number or bool of the class of its type, where C# would widen it. Misfit if it is of another.</summary>
        public static object Widened(string type, object value)
        {
            if (type == "int8" && (value is int || value is short)) return Convert.ToInt64(value);
            if (type == "int4" && value is short) return Convert.ToInt32(value);
            if (type == "float8" && value is float) return (double)(float)value;
            Type expected;
            if (!Classes.TryGetValue(type, out expected) || value.GetType() != expected) throw new Misfit(value);
            return value;
        }

        /// <summary>Writes a value in the JSON form of its type; null is NULL. Misfit if it is not of the type.</summary>
        static void Write(StringBuilder text, SqlType type, object value)
        {
            if (value == null)
            {
                text.Append("null");
                return;
            }
            if (type.Type == "array")
            {
                var values = value as IEnumerable;
                if (values == null || value is string) throw new Misfit(value);
                text.Append('[');
                var isFirst = true;
                foreach (var element in values)
                {
                    if (!isFirst) text.Append(',');
                    isFirst = false;
                    Write(text, type.Element, element);
                }
                text.Append(']');
            }
            else if (type.Parts.Count > 0)
            {
                MemberInfo[] members;
                try
                {
                    members = MembersOf(type, value.GetType());
                }
                catch (ArgumentException)
                {
                    throw new Misfit(value);
                }
                text.Append('{');
                for (var i = 0; i < members.Length; i++)
                {
                    if (i > 0) text.Append(',');
                    text.Append(JsonConvert.ToString(type.Parts[i].Key)).Append(':');
                    Write(text, type.Parts[i].Value, Get(members[i], value));
                }
                text.Append('}');
            }
            else
            {
                WriteScalar(text, type.Type, value);
            }
        }

        static void WriteScalar(StringBuilder text, string type, object value)
        {
            if (!(value is string)) value = Widened(type, value);
            switch (value is string ? "text" : type)
            {
                case "bool": text.Append((bool)value ? "true" : "false"); break;
                case "int8":
                    var number = (long)value;
                    var quote = number > MaxSafeInteger || number < -MaxSafeInteger ? "\"" : "";
                    text.Append(quote).Append(number.ToString(Plain)).Append(quote);
                    break;
                case "float4": WriteFloat(text, (float)value, ((float)value).ToString("G9", Plain)); break;
                case "float8":
                    var shortest = ((double)value).ToString("R", Plain);
                    double read;
                    // Mono's shortest text is not always the same number.
                    var isExact = double.TryParse(shortest, NumberStyles.Float, Plain, out read) && read.Equals((double)value);
                    WriteFloat(text, (double)value, isExact ? shortest : ((double)value).ToString("G17", Plain));
                    break;
                case "bytea": text.Append('"').Append(Convert.ToBase64String((byte[])value)).Append('"'); break;
                case "int2":
                case "int4": text.Append(Convert.ToString(value, Plain)); break;
                case "interval":
                    var interval = (Interval)value;
                    text.AppendFormat(Plain, "{{\"months\":{0},\"days\":{1},\"microseconds\":{2}", interval.Months, interval.Days, interval.Nanoseconds / 1000);
                    if (interval.Nanoseconds % 1000 != 0) text.AppendFormat(Plain, ",\"nanoseconds\":{0}", interval.Nanoseconds % 1000);
                    text.Append('}');
                    break;
                default: text.Append(JsonConvert.ToString(ScalarText(type, value))); break;
            }
        }

        /// <summary>The text of a value that is no number and not nested.</summary>
        static string ScalarText(string type, object value)
        {
            var given = value as string;
            if (given != null) return !Classes.ContainsKey(type) || AlsoText.Contains(type) ? given : throw new Misfit(value);
            value = Widened(type, value);
            switch (type)
            {
                case "date": return ((DateTime)value).TimeOfDay == TimeSpan.Zero ? ((DateTime)value).ToString("yyyy-MM-dd", Plain) : throw new Misfit(value);
                case "timestamp": return Micros(((DateTime)value).Ticks, value) + ((DateTime)value).ToString("yyyy-MM-dd'T'HH:mm:ss.ffffff", Plain);
                case "datetime2": return ((DateTime)value).ToString("yyyy-MM-dd'T'HH:mm:ss.fffffff", Plain);
                case "timestamptz":
                    var moment = ((DateTimeOffset)value).UtcDateTime;
                    return Micros(moment.Ticks, value) + moment.ToString("yyyy-MM-dd'T'HH:mm:ss.ffffff'Z'", Plain);
                case "uuid": return ((Guid)value).ToString("D");
                case "time":
                    var time = (TimeSpan)value;
                    if (time < TimeSpan.Zero || time > TimeSpan.FromDays(1)) throw new Misfit(value);
                    return Micros(time.Ticks, value) + string.Format(Plain, "{0:00}:{1:00}:{2:00}.{3:000000}", (int)time.TotalHours, time.Minutes, time.Seconds, time.Ticks % 10000000 / 10);
                case "numeric": return ((decimal)value).ToString(Plain);
                default: throw new Misfit(value);
            }
        }

        /// <summary>Nothing is cut: ticks are a tenth of a microsecond.</summary>
        static string Micros(long ticks, object value)
        {
            if (ticks % 10 != 0) throw new Misfit(value);
            return "";
        }

        static void WriteFloat(StringBuilder text, double value, string plain)
        {
            if (double.IsNaN(value)) text.Append("\"NaN\"");
            else if (double.IsInfinity(value)) text.Append(value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
            // Mono forgets the sign of zero.
            else if (value == 0) text.Append(double.IsNegativeInfinity(1 / value) ? "-0.0" : "0.0");
            else text.Append(plain);
        }

        static MemberInfo[] MembersOf(SqlType type, Type target)
        {
            var members = target.GetMembers(BindingFlags.Instance | BindingFlags.Public).Where(member => member is FieldInfo || member is PropertyInfo).ToArray();
            return type.Parts.Select(part =>
            {
                var found = members.FirstOrDefault(member => IsSameName(part.Key, member.Name));
                if (found == null) throw new ArgumentException("C# type " + target.Name + " has no public member for \"" + part.Key + "\" of SQL type " + type.Text);
                return found;
            }).ToArray();
        }

        static Type ClassOf(MemberInfo member)
        {
            return member is FieldInfo ? ((FieldInfo)member).FieldType : ((PropertyInfo)member).PropertyType;
        }

        static object Get(MemberInfo member, object value)
        {
            return member is FieldInfo ? ((FieldInfo)member).GetValue(value) : ((PropertyInfo)member).GetValue(value);
        }

        static void Set(MemberInfo member, object value, object part)
        {
            if (member is FieldInfo) ((FieldInfo)member).SetValue(value, part);
            else ((PropertyInfo)member).SetValue(value, part);
        }
    }
}
