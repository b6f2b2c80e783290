using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

namespace Transship
{
    /// <summary>A column of a batch of calls, copied out of the core's memory.</summary>
    sealed class GivenColumn
    {
        readonly byte[] validity, bits, bytes;
        readonly int[] offsets;
        /// <summary>The values of a column of integers, and of one of floats.</summary>
        public readonly long[] Integers;
        public readonly double[] Floats;

        public GivenColumn(Core.Column column, int rows)
        {
            if (column.Validity != IntPtr.Zero) validity = Copy(column.Validity, (rows + 7) / 8);
            switch ((char)column.Format)
            {
                case 'b':
                    bits = Copy(column.Values, (rows + 7) / 8);
                    break;
                case 'l':
                    Integers = new long[rows];
                    if (rows > 0) Marshal.Copy(column.Values, Integers, 0, rows);
                    break;
                case 'g':
                    Floats = new double[rows];
                    if (rows > 0) Marshal.Copy(column.Values, Floats, 0, rows);
                    break;
                default:
                    offsets = new int[rows + 1];
                    Marshal.Copy(column.Values, offsets, 0, rows + 1);
                    bytes = Copy(IntPtr.Add(column.Bytes, offsets[0]), offsets[rows] - offsets[0]);
                    break;
            }
        }

        static byte[] Copy(IntPtr from, int size)
        {
            var copy = new byte[size];
            if (size > 0) Marshal.Copy(from, copy, 0, size);
            return copy;
        }

        static bool Bit(byte[] bits, int row)
        {
            return (bits[row >> 3] >> (row & 7) & 1) != 0;
        }

        public bool HasNulls { get { return validity != null; } }

        public bool IsNull(int row)
        {
            return validity != null && !Bit(validity, row);
        }

        public bool Bool(int row)
        {
            return Bit(bits, row);
        }

        public byte[] Bytes(int row)
        {
            var value = new byte[offsets[row + 1] - offsets[row]];
            Buffer.BlockCopy(bytes, offsets[row] - offsets[0], value, 0, value.Length);
            return value;
        }

        public string Text(int row)
        {
            return Encoding.UTF8.GetString(bytes, offsets[row] - offsets[0], offsets[row + 1] - offsets[row]);
        }

        /// <summary>The value as an error shows it.</summary>
        public string Shown(int row)
        {
            if (IsNull(row)) return "NULL";
            if (Integers != null) return Integers[row].ToString();
            if (Floats != null) return Floats[row].ToString();
            if (bits != null) return Bool(row).ToString();
            var text = Text(row);
            return "\"" + (text.Length > 60 ? text.Substring(0, 60) + "..." : text) + "\"";
        }
    }

    /// <summary>A column of results that grows.</summary>
    sealed class Results
    {
        const int FirstRows = 64;
        static readonly Encoding Strict = new UTF8Encoding(false, true);

        readonly SqlType type;
        readonly char format;
        byte[] validity, bits, bytes = new byte[0];
        long[] integers;
        double[] floats;
        int[] offsets;
        int capacity, size, nulls;

        public Results(SqlType type, char format)
        {
            this.type = type;
            this.format = format;
            Clear();
        }

        public int Rows { get; private set; }

        /// <summary>Bytes of text that it holds.</summary>
        public int TextBytes { get { return size; } }

        public void Clear()
        {
            Rows = size = nulls = 0;
            capacity = FirstRows;
            validity = new byte[FirstRows / 8];
            if (format == 'b') bits = new byte[FirstRows / 8];
            if (format == 'l') integers = new long[FirstRows];
            if (format == 'g') floats = new double[FirstRows];
            if (format == 'z') offsets = new int[FirstRows + 1];
        }

        /// <summary>Adds a value; null is NULL. Misfit if it is not of the type.</summary>
        public void Add(object value)
        {
            AddSettled(Settled(value));
        }

        /// <summary>A value of which all code of the handler's has run, such as an enumerator; null is NULL. Misfit if it is not of the type.</summary>
        public object Settled(object value)
        {
            if (value == null) return null;
            return format == 'z' ? BytesOf(value) : Values.Widened(type.Type, value);
        }

        /// <summary>Adds a value that is settled. Misfit if there is no room for it.</summary>
        public void AddSettled(object value)
        {
            if (Rows == capacity) Grow();
            if (value == null)
            {
                nulls++;
            }
            else
            {
                Put(value);
                validity[Rows >> 3] |= (byte)(1 << (Rows & 7));
            }
            if (format == 'z') offsets[Rows + 1] = size;
            Rows++;
        }

        void Put(object value)
        {
            if (format == 'z')
            {
                Append((byte[])value);
                return;
            }
            switch (type.Type)
            {
                case "bool":
                    if ((bool)value) bits[Rows >> 3] |= (byte)(1 << (Rows & 7));
                    break;
                case "int2": integers[Rows] = (short)value; break;
                case "int4": integers[Rows] = (int)value; break;
                case "int8": integers[Rows] = (long)value; break;
                case "float4": floats[Rows] = (float)value; break;
                default: floats[Rows] = (double)value; break;
            }
        }

        byte[] BytesOf(object value)
        {
            if (type.Type == "bytea")
            {
                var given = value as byte[];
                if (given == null) throw new Misfit(value);
                return given;
            }
            try
            {
                return Strict.GetBytes(Values.ToText(type, value));
            }
            catch (EncoderFallbackException)
            {
                throw new Misfit(value);
            }
        }

        void Append(byte[] given)
        {
            if (given.Length > int.MaxValue - 64 - size) throw new Misfit("more than 2 GiB");
            if (size + given.Length > bytes.Length) Array.Resize(ref bytes, (int)Math.Min(int.MaxValue - 64, Math.Max(1024, Math.Max(bytes.Length * 2L, (long)size + given.Length))));
            Buffer.BlockCopy(given, 0, bytes, size, given.Length);
            size += given.Length;
        }

        void Grow()
        {
            capacity *= 2;
            Array.Resize(ref validity, capacity / 8);
            if (format == 'b') Array.Resize(ref bits, capacity / 8);
            if (format == 'l') Array.Resize(ref integers, capacity);
            if (format == 'g') Array.Resize(ref floats, capacity);
            if (format == 'z') Array.Resize(ref offsets, capacity + 1);
        }

        /// <summary>Hands columns over as the core takes them, which copies them.</summary>
        public static T Lend<T>(IEnumerable<Results> columns, Func<Core.Column[], T> take)
        {
            var pins = new List<GCHandle>();
            Func<object, IntPtr> pin = array =>
            {
                var handle = GCHandle.Alloc(array, GCHandleType.Pinned);
                pins.Add(handle);
                return handle.AddrOfPinnedObject();
            };
            try
            {
                var lent = new List<Core.Column>();
                foreach (var column in columns)
                {
                    object values = column.format == 'b' ? column.bits : column.format == 'l' ? column.integers : column.format == 'g' ? (object)column.floats : column.offsets;
                    lent.Add(new Core.Column
                    {
                        Format = (byte)column.format,
                        Validity = column.nulls > 0 ? pin(column.validity) : IntPtr.Zero,
                        Values = pin(values),
                        Bytes = column.format == 'z' ? pin(column.bytes) : IntPtr.Zero,
                    });
                }
                return take(lent.ToArray());
            }
            finally
            {
                foreach (var handle in pins) handle.Free();
            }
        }
    }
}
