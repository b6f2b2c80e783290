using System;
using System.Collections;
using System.Collections.Generic;
using System.Linq;
using System.Threading;

namespace Transship
{
    /// <summary>
    /// A shared table of a call (docs/protocol.md §4.13), which never changes. Any thread may read it until the call has ended; what was read may
    /// be kept. A key of several columns is a value, or a list of values, for each of them.
    /// </summary>
    public sealed class SharedTable
    {
        readonly Core.TableHandle handle;
        readonly int[] key;
        internal readonly SharedColumn[] Columns;

        internal SharedTable(Core.TableHandle handle)
        {
            this.handle = handle;
            Rows = Core.Rows(handle);
            Columns = Enumerable.Range(0, Core.Fields(handle)).Select(number => new SharedColumn(handle, number)).ToArray();
            key = Enumerable.Range(0, Columns.Length).Where(number => Columns[number].KeyPosition >= 0).OrderBy(number => Columns[number].KeyPosition).ToArray();
        }

        /// <summary>
        /// Opens a table that the function's key "tables" names, for code that a call has begun. InvalidOperationException if the call does not have
        /// it, or no call runs here.
        /// </summary>
        public static SharedTable Open(string name)
        {
            if (name == null) throw new ArgumentNullException("name");
            var tables = CallTables.Current;
            if (tables == null) throw new InvalidOperationException("no shared table \"" + name + "\": no call that has shared tables runs here");
            return tables.Open(name);
        }

        /// <summary>The number of rows.</summary>
        public long Rows { get; private set; }

        /// <summary>The names of all columns, and of the key's.</summary>
        public IList<string> ColumnNames { get { return Columns.Select(column => column.Name).ToArray(); } }
        public IList<string> Key { get { return key.Select(number => Columns[number].Name).ToArray(); } }

        /// <summary>The row of a key; null if there is none. InvalidOperationException if the key has several.</summary>
        public SharedRow Get(params object[] key)
        {
            var found = Find((key ?? new object[1]).Select(part => new[] { part }).ToArray(), false);
            return found.IsFound(0) ? new SharedRow(found, 0) : null;
        }

        /// <summary>
        /// One row per key, in their order, of which all columns are null if the table has no such row. InvalidOperationException if a key has several.
        /// </summary>
        public SharedRows Lookup(params IList[] keys)
        {
            return Find(ColumnsOf(keys), false);
        }

        /// <summary>All rows of all keys, in the order of the keys.</summary>
        public SharedRows Matches(params IList[] keys)
        {
            return Find(ColumnsOf(keys), true);
        }

        /// <summary>All rows, batch by batch. A batch can be read until the next one is taken: it holds the memory of its version.</summary>
        public IEnumerable<SharedRows> Batches()
        {
            var count = Core.Batches(handle);
            for (var number = 0; number < count; number++)
            {
                var rows = Core.Batch(handle, number);
                try
                {
                    yield return new SharedRows(this, rows);
                }
                finally
                {
                    rows.Dispose();
                }
            }
        }

        internal void Close()
        {
            handle.Dispose();
        }

        IList[] ColumnsOf(IList[] keys)
        {
            // Byte strings are lists themselves.
            return key.Length == 1 && keys is byte[][] ? new IList[] { keys } : keys;
        }

        SharedRows Find(IList[] columns, bool all)
        {
            if (key.Length == 0) throw new ArgumentException("the table has no key");
            if (columns.Length != key.Length) throw new ArgumentException("the key has " + key.Length + " columns: " + string.Join(", ", Key));
            var keys = columns.Select((values, position) => Columns[key[position]].Taken(values)).ToArray();
            var count = keys[0].Rows;
            if (keys.Any(column => column.Rows != count)) throw new ArgumentException("the columns of the keys differ in length");
            return new SharedRows(this, Results.Lend(keys, lent => Core.Find(handle, count, lent, all)));
        }
    }

    /// <summary>A column of a table.</summary>
    sealed class SharedColumn
    {
        public readonly string Name;
        public readonly SqlType Type;
        /// <summary>The position among the key's columns, or below zero.</summary>
        public readonly int KeyPosition;
        readonly char format;

        public SharedColumn(Core.TableHandle table, int number)
        {
            string type;
            Core.Field(table, number, out Name, out type, out format, out KeyPosition);
            Type = SqlType.OfColumn(type);
        }

        /// <summary>Keys of the column. ArgumentException if they are not of its type.</summary>
        public Results Taken(IList values)
        {
            var taken = new Results(Type, format);
            try
            {
                foreach (var value in values) taken.Add(value);
            }
            catch (Misfit cause)
            {
                throw new ArgumentException("the keys do not fit column \"" + Name + "\" of type " + Type.Text + ": " + cause.Message);
            }
            return taken;
        }
    }

    /// <summary>Rows of a table that were found. A column's values are copied when they are first asked for.</summary>
    public sealed class SharedRows : IEnumerable<SharedRow>
    {
        readonly SharedTable table;
        readonly Core.RowsHandle handle;
        readonly byte[] validity;
        readonly GivenColumn[] columns;

        internal SharedRows(SharedTable table, Core.RowsHandle handle)
        {
            this.table = table;
            this.handle = handle;
            columns = new GivenColumn[table.Columns.Length];
            int[] positions;
            Count = Core.RowsOf(handle, out validity, out positions);
            Positions = positions ?? new int[0];
            // Texts may take more, numbers take less.
            handle.HasBytes(16L * Count * columns.Length);
        }

        public int Count { get; private set; }

        /// <summary>Of Matches: the position of each row's key among the keys.</summary>
        public IList<int> Positions { get; private set; }

        /// <summary>The values of a column, one per row, of the class that a method would take as an argument.</summary>
        public T[] Column<T>(string name)
        {
            var read = Reader<T>(name);
            var values = new T[Count];
            for (var row = 0; row < Count; row++) values[row] = read(row);
            return values;
        }

        /// <summary>The rows; null where a key has none.</summary>
        public IEnumerator<SharedRow> GetEnumerator()
        {
            for (var row = 0; row < Count; row++) yield return IsFound(row) ? new SharedRow(this, row) : null;
        }

        IEnumerator IEnumerable.GetEnumerator()
        {
            return GetEnumerator();
        }

        internal bool IsFound(int row)
        {
            return validity == null || (validity[row >> 3] >> (row & 7) & 1) != 0;
        }

        internal Func<int, T> Reader<T>(string name)
        {
            var number = Array.FindIndex(table.Columns, column => column.Name == name);
            if (number < 0) throw new ArgumentException("the table has no column \"" + name + "\"");
            var type = table.Columns[number].Type;
            // Its class, where none is named.
            var read = Values.ColumnReader(type, typeof(T) == typeof(object) ? Values.ClassOf(type) : typeof(T));
            GivenColumn given;
            lock (columns) given = columns[number] ?? (columns[number] = Core.ColumnOf(handle, number, Count));
            return row =>
            {
                try
                {
                    return (T)read(given, row);
                }
                catch (OutOfRange)
                {
                    throw new InvalidCastException("C# type " + typeof(T).Name + " cannot hold column \"" + name + "\" of type " + type.Text + ": it is " + given.Shown(row));
                }
            };
        }
    }

    /// <summary>A row of a table.</summary>
    public sealed class SharedRow
    {
        readonly SharedRows rows;
        readonly int number;

        internal SharedRow(SharedRows rows, int number)
        {
            this.rows = rows;
            this.number = number;
        }

        /// <summary>The value of a column, of the class that a method would take as an argument.</summary>
        public T Get<T>(string column)
        {
            return rows.Reader<T>(column)(number);
        }
    }

    /// <summary>The tables of a call, which its code and what that begins can open until the call has ended.</summary>
    sealed class CallTables
    {
        static readonly AsyncLocal<CallTables> current = new AsyncLocal<CallTables>();

        readonly IntPtr work;
        readonly Dictionary<string, SharedTable> opened = new Dictionary<string, SharedTable>();
        bool isOver;

        CallTables(IntPtr work)
        {
            this.work = work;
        }

        public static CallTables Current { get { return current.Value; } }

        /// <summary>Answers work with its tables, if it has some.</summary>
        public static T With<T>(IntPtr work, Func<T> answer)
        {
            if (!Core.HasTables(work)) return answer();
            var tables = new CallTables(work);
            current.Value = tables;
            try
            {
                return answer();
            }
            finally
            {
                current.Value = null;
                tables.Close();
            }
        }

        public SharedTable Open(string name)
        {
            lock (opened)
            {
                if (isOver) throw new InvalidOperationException("no shared table \"" + name + "\": the call has ended");
                SharedTable found;
                if (!opened.TryGetValue(name, out found)) opened[name] = found = new SharedTable(Core.OpenTable(work, name));
                return found;
            }
        }

        void Close()
        {
            lock (opened)
            {
                isOver = true;
                foreach (var table in opened.Values) table.Close();
                opened.Clear();
            }
        }
    }
}
