using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Text;
using System.Text.RegularExpressions;
using Newtonsoft.Json;
using Newtonsoft.Json.Linq;

namespace Transship
{
    /// <summary>
    /// A batch of calls as columns that lie in memory (docs/protocol.md §7): the buffers of the Arrow columnar format, and a
    /// header in JSON that says where each begins. Values are those of the JSON form, of which Values makes the handler's.
    /// </summary>
    sealed class ColumnsRequest
    {
        public const string ContentType = "application/vnd.transship.columns";
        public readonly JObject Header;
        readonly long[] places;
        readonly byte[] data;

        public ColumnsRequest(byte[] body)
        {
            var length = body.Length < 4 ? uint.MaxValue : BitConverter.ToUInt32(body, 0);
            if (length > body.Length - 4L) throw Broken("its header is cut off");
            try
            {
                Header = JsonText.Parse(new UTF8Encoding(false, true).GetString(body, 4, (int)length)) as JObject;
                places = Header["buffers"].Select(place => checked((long)place)).ToArray();
            }
            catch (Exception cause) when (cause is FormatException || cause is NullReferenceException || cause is InvalidOperationException || cause is InvalidCastException || cause is OverflowException || cause is ArgumentException)
            {
                throw Broken("its header has no buffers");
            }
            if (places.Length % 2 != 0 || places.Any(place => place < 0)) throw Broken("its buffers have no places");
            if (Header["segment"] != null)
            {
                data = ReadSegment(Header["segment"]);
                return;
            }
            data = body.Skip(((int)length + 4 + 7) / 8 * 8).ToArray();
        }

        static CallError Broken(string fact)
        {
            return CallError.Violation("the request cannot be read: " + fact);
        }

        static FileStream Open(JToken name, FileAccess access)
        {
            var folder = Environment.GetEnvironmentVariable("TRANSSHIP_SEGMENT_DIR");
            if (folder == null || name.Type != JTokenType.String || !Regex.IsMatch((string)name, "^[0-9a-f]{32}\\z")) throw Broken("there is no segment " + name.ToString(Formatting.None));
            try
            {
                return new FileStream(folder + "/" + name, FileMode.Open, access, FileShare.ReadWrite);
            }
            catch (Exception cause) when (cause is IOException || cause is UnauthorizedAccessException)
            {
                throw Broken("segment " + name + " cannot be opened: " + cause.Message);
            }
        }

        byte[] ReadSegment(JToken name)
        {
            ulong size = 0;
            for (var i = 0; i < places.Length; i += 2) size = Math.Max(size, (ulong)places[i] + (ulong)places[i + 1]);
            using (var file = Open(name, FileAccess.Read))
            {
                // A size that is not there must not cost its memory.
                if (size > (ulong)file.Length || size > int.MaxValue) throw Broken("segment " + name + " has less than " + size + " bytes");
                var bytes = new byte[size];
                for (int read, at = 0; at < bytes.Length; at += read)
                {
                    read = file.Read(bytes, at, bytes.Length - at);
                    if (read == 0) throw Broken("segment " + name + " has less than " + size + " bytes");
                }
                return bytes;
            }
        }

        /// <summary>The columns of a batch of these types, and its number of rows.</summary>
        public JArray[] Columns(IEnumerable<SqlType> types, out int rows)
        {
            if (Header["rows"] == null || Header["rows"].Type != JTokenType.Integer || (long)Header["rows"] < 0 || (long)Header["rows"] > int.MaxValue / 16) throw Broken("it has no number of rows that could be");
            rows = (int)Header["rows"];
            var count = rows;
            var reader = new Reader(data, places);
            var columns = types.Select(type => new JArray(reader.Column(type, count))).ToArray();
            reader.Finish();
            return columns;
        }

        /// <summary>The body of the reply with columns of the JSON form.</summary>
        public byte[] Reply(IEnumerable<SqlType> types, JArray columns, int rows, long micros)
        {
            var writer = new Writer();
            var position = 0;
            foreach (var type in types) writer.Column(type, columns[position++].ToArray());
            var header = new JObject { { "batch", Header["batch"] ?? 0 }, { "rows", rows }, { "micros", micros }, { "buffers", new JArray(writer.Places) } };
            var laidOut = writer.Data.ToArray();
            var segment = Header["reply_segment"];
            if (segment != null)
            {
                header.Add("segment", segment);
                using (var file = Open(segment, FileAccess.ReadWrite)) file.Write(laidOut, 0, laidOut.Length);
                laidOut = new byte[0];
            }
            var text = Encoding.UTF8.GetBytes(header.ToString(Formatting.None));
            var body = new byte[(4 + text.Length + 7) / 8 * 8 + laidOut.Length];
            BitConverter.GetBytes((uint)text.Length).CopyTo(body, 0);
            text.CopyTo(body, 4);
            laidOut.CopyTo(body, body.Length - laidOut.Length);
            return body;
        }

        /// <summary>Reads columns out of bytes that nobody has checked.</summary>
        sealed class Reader
        {
            static readonly UTF8Encoding Utf8 = new UTF8Encoding(false, true);
            readonly byte[] data;
            readonly long[] places;
            int position;

            public Reader(byte[] data, long[] places)
            {
                this.data = data;
                this.places = places;
            }

            public void Finish()
            {
                if (position != places.Length) throw Broken("it has more buffers than columns");
            }

            /// <summary>Where the next buffer begins.</summary>
            int Next(long least, out int length)
            {
                if (position == places.Length) throw Broken("it has fewer buffers than columns");
                var offset = places[position];
                var size = places[position + 1];
                position += 2;
                if (offset % 8 != 0 || offset > data.Length || size > data.Length - offset) throw Broken("no buffer of " + size + " bytes can be at " + offset);
                if (size < least) throw Broken("a buffer has " + size + " bytes, not " + least);
                length = (int)size;
                return (int)offset;
            }

            int Next(long least)
            {
                int length;
                return Next(least, out length);
            }

            bool Bit(int start, int row)
            {
                return (data[start + row / 8] >> row % 8 & 1) == 1;
            }

            int[] Offsets(int rows)
            {
                var offsets = new int[rows + 1];
                Buffer.BlockCopy(data, Next(rows == 0 ? 0 : 4L * (rows + 1)), offsets, 0, rows == 0 ? 0 : 4 * (rows + 1));
                for (var row = 0; row <= rows; row++)
                {
                    if (offsets[row] < (row == 0 ? 0 : offsets[row - 1])) throw Broken("offsets descend");
                }
                return offsets;
            }

            public JToken[] Column(SqlType type, int rows)
            {
                int length;
                var validity = Next(0, out length);
                if (length > 0 && length < (rows + 7) / 8) throw Broken("a validity buffer is too short");
                var value = Values(type, rows);
                var column = new JToken[rows];
                for (var row = 0; row < rows; row++) column[row] = length == 0 || Bit(validity, row) ? value(row) : JValue.CreateNull();
                return column;
            }

            /// <summary>How the value of a row is read.</summary>
            Func<int, JToken> Values(SqlType type, int rows)
            {
                int start;
                switch (type.Type)
                {
                    case "bool":
                        start = Next((rows + 7) / 8);
                        return row => new JValue(Bit(start, row));
                    case "int2":
                        start = Next(2L * rows);
                        return row => new JValue((long)BitConverter.ToInt16(data, start + row * 2));
                    case "int4":
                        start = Next(4L * rows);
                        return row => new JValue((long)BitConverter.ToInt32(data, start + row * 4));
                    case "int8":
                        start = Next(8L * rows);
                        return row => new JValue(BitConverter.ToInt64(data, start + row * 8));
                    case "float4":
                        start = Next(4L * rows);
                        return row => new JValue((double)BitConverter.ToSingle(data, start + row * 4));
                    case "float8":
                        start = Next(8L * rows);
                        return row => new JValue(BitConverter.ToDouble(data, start + row * 8));
                    case "date":
                        start = Next(4L * rows);
                        return row => new JValue(Calendar.DateText(BitConverter.ToInt32(data, start + row * 4)));
                    case "timestamp":
                    case "timestamptz":
                        start = Next(8L * rows);
                        return row => new JValue(Calendar.MomentText(BitConverter.ToInt64(data, start + row * 8), type.Type == "timestamptz" ? "Z" : ""));
                    case "time":
                        start = Next(8L * rows);
                        return row => new JValue(Calendar.TimeText(BitConverter.ToInt64(data, start + row * 8)));
                    case "uuid":
                        start = Next(16L * rows);
                        return row => new JValue(Regex.Replace(BitConverter.ToString(data, start + row * 16, 16).Replace("-", "").ToLowerInvariant(), "^(.{8})(.{4})(.{4})(.{4})", "$1-$2-$3-$4-"));
                    case "interval":
                        start = Next(16L * rows);
                        return row =>
                        {
                            var nanoseconds = BitConverter.ToInt64(data, start + row * 16 + 8);
                            var value = new JObject { { "months", BitConverter.ToInt32(data, start + row * 16) }, { "days", BitConverter.ToInt32(data, start + row * 16 + 4) }, { "microseconds", nanoseconds / 1000 } };
                            if (nanoseconds % 1000 != 0) value.Add("nanoseconds", nanoseconds % 1000);
                            return value;
                        };
                }
                if (type.Parts.Count > 0)
                {
                    var parts = type.Parts.Select(part => Column(part.Value, rows)).ToArray();
                    return row => new JObject(parts.Select((part, i) => new JProperty(type.Parts[i].Key, part[row])));
                }
                var offsets = Offsets(rows);
                if (type.Type == "array")
                {
                    var elements = Column(type.Element, offsets[rows]);
                    return row => new JArray(elements.Skip(offsets[row]).Take(offsets[row + 1] - offsets[row]));
                }
                start = Next(offsets[rows]);
                return row =>
                {
                    var count = offsets[row + 1] - offsets[row];
                    if (type.Type == "bytea") return new JValue(Convert.ToBase64String(data, start + offsets[row], count));
                    try
                    {
                        return new JValue(Utf8.GetString(data, start + offsets[row], count));
                    }
                    catch (DecoderFallbackException)
                    {
                        throw Broken("a text is not UTF-8");
                    }
                };
            }
        }

        /// <summary>Lays columns out.</summary>
        sealed class Writer
        {
            const int Alignment = 64;
            public readonly MemoryStream Data = new MemoryStream();
            public readonly List<long> Places = new List<long>();

            void Add(byte[] bytes)
            {
                if (bytes.Length > 0) Data.SetLength((Data.Length + Alignment - 1) / Alignment * Alignment);
                Places.Add(bytes.Length > 0 ? Data.Length : 0);
                Places.Add(bytes.Length);
                Data.Position = Data.Length;
                Data.Write(bytes, 0, bytes.Length);
            }

            static byte[] Bits(JToken[] values, Func<JToken, bool> isSet)
            {
                var bits = new byte[(values.Length + 7) / 8];
                for (var row = 0; row < values.Length; row++)
                {
                    if (isSet(values[row])) bits[row / 8] |= (byte)(1 << row % 8);
                }
                return bits;
            }

            static bool IsNull(JToken value)
            {
                return value == null || value.Type == JTokenType.Null;
            }

            void AddFixed(JToken[] values, int width, Func<JToken, byte[]> convert)
            {
                var bytes = new byte[values.Length * width];
                for (var row = 0; row < values.Length; row++)
                {
                    if (!IsNull(values[row])) convert(values[row]).CopyTo(bytes, row * width);
                }
                Add(bytes);
            }

            void AddOffsets(IEnumerable<int> lengths, int rows)
            {
                var offsets = new byte[4 * (rows + 1)];
                int end = 0, row = 0;
                foreach (var length in lengths) BitConverter.GetBytes(end = checked(end + length)).CopyTo(offsets, 4 * ++row);
                Add(offsets);
            }

            public void Column(SqlType type, JToken[] values)
            {
                Add(values.Any(IsNull) ? Bits(values, value => !IsNull(value)) : new byte[0]);
                switch (type.Type)
                {
                    case "bool": Add(Bits(values, value => !IsNull(value) && (bool)value)); return;
                    case "int2": AddFixed(values, 2, value => BitConverter.GetBytes((short)(long)value)); return;
                    case "int4": AddFixed(values, 4, value => BitConverter.GetBytes((int)(long)value)); return;
                    case "int8": AddFixed(values, 8, value => BitConverter.GetBytes(value.Type == JTokenType.String ? long.Parse((string)value, CultureInfo.InvariantCulture) : (long)value)); return;
                    case "float4": AddFixed(values, 4, value => BitConverter.GetBytes((float)Number(value))); return;
                    case "float8": AddFixed(values, 8, value => BitConverter.GetBytes(Number(value))); return;
                    case "date": AddFixed(values, 4, value => BitConverter.GetBytes(Calendar.Date((string)value))); return;
                    case "timestamp":
                    case "timestamptz": AddFixed(values, 8, value => BitConverter.GetBytes(Calendar.Moment((string)value))); return;
                    case "time": AddFixed(values, 8, value => BitConverter.GetBytes(Calendar.Time((string)value))); return;
                    case "uuid":
                        AddFixed(values, 16, value => Regex.Matches(((string)value).Replace("-", ""), "..").Cast<Match>().Select(digits => Convert.ToByte(digits.Value, 16)).ToArray());
                        return;
                    case "interval":
                        AddFixed(values, 16, value => BitConverter.GetBytes((int)value["months"]).Concat(BitConverter.GetBytes((int)value["days"]))
                            .Concat(BitConverter.GetBytes((long)value["microseconds"] * 1000 + (value["nanoseconds"] == null ? 0 : (long)value["nanoseconds"]))).ToArray());
                        return;
                }
                if (type.Parts.Count > 0)
                {
                    foreach (var part in type.Parts) Column(part.Value, values.Select(value => IsNull(value) ? null : value[part.Key]).ToArray());
                    return;
                }
                if (type.Type == "array")
                {
                    AddOffsets(values.Select(value => IsNull(value) ? 0 : ((JArray)value).Count), values.Length);
                    Column(type.Element, values.Where(value => !IsNull(value)).SelectMany(value => value).ToArray());
                    return;
                }
                var texts = values.Select(value => IsNull(value) ? new byte[0] : type.Type == "bytea" ? Convert.FromBase64String((string)value) : Encoding.UTF8.GetBytes((string)value)).ToArray();
                AddOffsets(texts.Select(text => text.Length), texts.Length);
                Add(texts.SelectMany(text => text).ToArray());
            }

            static double Number(JToken value)
            {
                if (value.Type != JTokenType.String) return (double)value;
                return (string)value == "NaN" ? double.NaN : (string)value == "Infinity" ? double.PositiveInfinity : double.NegativeInfinity;
            }
        }
    }

    /// <summary>
    /// Dates of any year between their texts and their numbers: the proleptic Gregorian calendar in eras of 400 years (Howard
    /// Hinnant, "chrono-Compatible Low-Level Date Algorithms"). Texts are those that Values has written.
    /// </summary>
    static class Calendar
    {
        const long Day = 86400000000;

        static long Floor(long value, long unit)
        {
            return value >= 0 ? value / unit : (value - unit + 1) / unit;
        }

        static string Civil(long days)
        {
            var shifted = days + 719468;
            var era = Floor(shifted, 146097);
            var dayOfEra = shifted - era * 146097;
            var yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36524 - dayOfEra / 146096) / 365;
            var dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100);
            var month = (5 * dayOfYear + 2) / 153;
            var year = yearOfEra + era * 400 + (month >= 10 ? 1 : 0);
            return string.Format(CultureInfo.InvariantCulture, "{0}{1:0000}-{2:00}-{3:00}", year < 0 ? "-" : year > 9999 ? "+" : "", Math.Abs(year), month < 10 ? month + 3 : month - 9, dayOfYear - (153 * month + 2) / 5 + 1);
        }

        public static string DateText(int days)
        {
            return days == int.MaxValue ? "infinity" : days == int.MinValue ? "-infinity" : Civil(days);
        }

        public static string TimeText(long micros)
        {
            var seconds = micros / 1000000;
            return string.Format(CultureInfo.InvariantCulture, "{0:00}:{1:00}:{2:00}.{3:000000}", seconds / 3600, seconds / 60 % 60, seconds % 60, micros % 1000000);
        }

        public static string MomentText(long micros, string zone)
        {
            if (micros == long.MaxValue || micros == long.MinValue) return micros > 0 ? "infinity" : "-infinity";
            var days = Floor(micros, Day);
            return Civil(days) + "T" + TimeText(micros - days * Day) + zone;
        }

        public static int Date(string text)
        {
            if (text == "infinity" || text == "-infinity") return text[0] == '-' ? int.MinValue : int.MaxValue;
            var parts = Regex.Match(text, @"^([+-]?\d+)-(\d\d)-(\d\d)").Groups;
            long year = long.Parse(parts[1].Value, CultureInfo.InvariantCulture), month = long.Parse(parts[2].Value, CultureInfo.InvariantCulture);
            if (month <= 2) year--;
            var era = Floor(year, 400);
            var yearOfEra = year - era * 400;
            var dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + long.Parse(parts[3].Value, CultureInfo.InvariantCulture) - 1;
            return (int)(era * 146097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear - 719468);
        }

        public static long Time(string text)
        {
            var parts = Regex.Match(text, @"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?").Groups;
            Func<int, long> part = i => long.Parse(parts[i].Value, CultureInfo.InvariantCulture);
            return ((part(1) * 60 + part(2)) * 60 + part(3)) * 1000000 + long.Parse(parts[4].Value.PadRight(6, '0'), CultureInfo.InvariantCulture);
        }

        public static long Moment(string text)
        {
            if (text == "infinity" || text == "-infinity") return text[0] == '-' ? long.MinValue : long.MaxValue;
            var middle = text.IndexOf('T');
            var zone = Regex.Match(text.Substring(middle), @"([+-])(\d\d):(\d\d)$").Groups;
            var offset = zone[1].Length == 0 ? 0 : (long.Parse(zone[2].Value, CultureInfo.InvariantCulture) * 60 + long.Parse(zone[3].Value, CultureInfo.InvariantCulture)) * 60000000 * (zone[1].Value == "-" ? -1 : 1);
            return Date(text.Substring(0, middle)) * Day + Time(text.Substring(middle)) - offset;
        }
    }
}
